"""Runs methods on tasks: every context x task x method over the same examples, reusing stored results."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pydantic
import torch

from contextlab import backbone as backbones
from contextlab import process
from contextlab.accounting.flops import count
from contextlab.accounting.ledger import Ledger, Meter
from contextlab.accounting.memory import resident_bytes
from contextlab.accounting.products import ProductCounter
from contextlab.backbone.embedded import EMBEDDED
from contextlab.errors import UserError
from contextlab.harness import batches, code
from contextlab.harness.aggregation import Peaks, largest_batch, largest_bytes, recounted, result_of, unmeasured
from contextlab.harness.case import TaskCase, cases, controls_of, labels_of
from contextlab.harness.comparison import Results, RunKey, differences
from contextlab.harness.identity import identity, provenance
from contextlab.harness.progress import Progress
from contextlab.harness.selection import BuiltMethod, built, select
from contextlab.harness.store import OpenRun, open_run
from contextlab.harness.stored import PHASES, ExampleLine, Result
from contextlab.method import AnyMethod
from contextlab.seals import first_fault

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from contextlab.backbone import Backbone

WARM_UP_TOKENS = 16


def bench(
    methods: str | Sequence[str],
    tasks: str | Sequence[str],
    *,
    split: str | None = None,
    backbone: str | PreTrainedModel | PeftModel | Backbone = EMBEDDED,
    tokenizer: PreTrainedTokenizerBase | None = None,
    context: str | Sequence[str] = "own",
    history: int | None = None,
    limit: int | None = None,
    first: int | None = None,
    tokens: int | None = None,
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
    data: Path | str | None = None,
    out: Path | str = "runs",
    device: str | None = None,
    dtype: str | None = None,
    quantise: str | None = None,
    counting: bool = True,
    batch: int | str = 1,
    progress: bool | None = None,
    on_result: Callable[[Result], None] | None = None,
    on_note: Callable[[str], None] | None = None,
) -> Results:
    """Run methods on tasks, store every finished example, and summarise.

    Stored examples are not run again: an interrupted call resumes when it is repeated.

    Args:
        methods: names of methods or of trained weights, or `path.py:Class`, with settings as in `longmem(K=32)`, as a
            list or separated by commas. A method without settings stands for the weights that are recommended for it.
        tasks: the same form, with splits as in `pg22/S1(tokens=8192)`.
        split: split of every task; each task's default when None.
        backbone: name, hub id, folder or GGUF file, with updates after a `+`; or a model of transformers or PEFT in
            memory, whose weights and settings stay as they are.
        tokenizer: of a model in memory.
        context: controls: `own`, `none`, `wrong`; with `own` and others, paired differences are computed.
        history: tokens read before the scored ones, in every task that has this setting.
        limit: the most examples of each task, the first ones.
        first: number of the first example that is run, where this call runs a part of the examples and other calls
            the rest; the store is then a shard of a sweep and needs a folder of its own, because tables read the first
            examples of a store.
        tokens: the most tokens read of each text, in every task that has this setting.
        seed: seed of a method's random numbers; every example starts from its own seed.
        settings: settings for all methods and tasks that have them, with the same meaning.
        data: folder of data sets.
        out: folder of the store.
        device: torch device; the GPU, where there is one, when None.
        dtype: of the backbone; bfloat16 on a GPU and float32 on a CPU when None.
        quantise: `8bit` or `4bit`: the linear layers of a backbone, by bitsandbytes.
        counting: whether to count FLOPs and peak memory; a run without them is a little faster.
        batch: how many examples are computed side by side at most, as rows of one state; `auto` for as many as fit into
            memory. Methods that cannot do this compute them one by one, with a note.
        progress: whether to show progress on standard error; when None as a bar on a terminal, else as a line a minute.
        on_result: called with the result of every run when it is finished.
        on_note: called with a sentence on every method whose weights were trained with other settings, or whose
            examples are not computed in batches as asked, and on every adapter of a model of another name.

    Raises:
        UserError: for a wrong name, option, data set or folder.
    """
    _check_out(out)
    size = batches.size_of(batch)
    selected_methods, selected_tasks = select(methods, tasks, split, settings, history=history, tokens=tokens)
    # Sources are read now: files may be edited while data and weights are loaded, and the imported code is meant.
    code.modules([*(method.kind for method in selected_methods), *(type(named.task) for named in selected_tasks)])
    runs: dict[RunKey, Result] = {}
    with Progress.on_stderr(progress) as bar:
        bar.loading("data")
        folder = Path(data) if data is not None else None
        controls = controls_of(context)
        selected_tasks = [named.loaded(folder) for named in selected_tasks]
        list(cases(selected_tasks, controls, limit, first))  # what cannot be run is refused before a model is loaded
        bar.loading(backbone if isinstance(backbone, str) else "model")
        model = backbones.resolve(backbone, tokenizer=tokenizer, device=device, dtype=dtype, quantise=quantise)
        if model.tokenizer is None:
            raise UserError("The model was given without its tokenizer, so that no text can be read: give tokenizer=.")
        selected_tasks = [named.loaded(folder, model) for named in selected_tasks]
        on_tasks = list(cases(selected_tasks, controls, limit, first))
        named_methods = [method.on(model) for method in selected_methods]
        of_model = built(named_methods, model)
        say = _once(on_note or _no_call)
        for note in filter(None, (*model.notes, *(method.note for method in of_model))):
            say(note)
        bar.begin(len(on_tasks) * len(of_model), len(of_model) * sum(len(case.selected) for case in on_tasks))
        for (task, case), method in itertools.product(zip(labels_of(on_tasks), on_tasks, strict=True), of_model):
            result = _run(method, case, seed, Path(out), bar, counting, size, say)
            runs[method.label, task, case.options.context] = result
            (on_result or _no_call)(result)
    notes = [method.explained for method, named in zip(named_methods, selected_methods, strict=True) if named.bare]
    return Results(list(runs.values()), list(differences(runs)), list(filter(None, notes)))


def _no_call(_: object) -> None:
    """Takes the place of a callback that is not given."""


def _once(say: Callable[[str], None]) -> Callable[[str], None]:
    """The same function without what it has said before."""
    earlier: set[str] = set()

    def say_new(sentence: str) -> None:
        if sentence not in earlier:
            earlier.add(sentence)
            say(sentence)

    return say_new


def _check_out(out: Path | str) -> None:
    """Refuse a folder of results that cannot be written, before anything is loaded."""
    if not str(out):
        raise UserError("The folder of results has no name: give one with --out.")
    existing = next((folder for folder in (Path(out), *Path(out).absolute().parents) if folder.exists()), None)
    if existing is not None and not existing.is_dir():
        raise UserError(f"{existing} is a file: name a folder with --out.")


def _run(
    built_method: BuiltMethod,
    case: TaskCase,
    seed: int,
    out: Path,
    bar: Progress,
    counting: bool,
    batch: batches.Size,
    say: Callable[[str], None],
) -> Result:
    """The result of one run, with the parts of its examples in the metrics."""
    name, method = built_method.name, built_method.method
    current = provenance(method, case.task, case.protocol, seed)
    key = identity((name, method), (case.name, case.task), case.split, case.options, case.dataset, case.protocol, seed)
    with (
        open_run(out, key, current) as run,
        torch.set_grad_enabled(method.capabilities.needs_gradients),
        _errors_placed(built_method.label, case, run, in_order=batch == 1),
    ):
        numbered = enumerate(case.selected, start=case.first or 0)
        missing = [index for index, example in numbered if example.id not in run.lines]
        label = f"{built_method.label} on {case.label} ({case.options.context})"
        computed = bar.examples(missing, len(case.selected) - len(missing), label)
        peaks = Peaks.of(run.summary)
        unmeasured_lines = unmeasured(list(run.lines.values()), peaks.examples) if counting else []
        if missing or unmeasured_lines:
            meter = warm_meter(method, seed, counting)
            if missing and tunes(method.backbone.device):
                _tuned(meter, case, missing[0], seed)
            batched = _batches(meter, case, seed, batch, say)
            for _, line in zip(computed, batched.lines(missing, counting=counting), strict=True):
                run.append(line)
            if counting:
                peaks = _measure(meter, case, run, seed, peaks, unmeasured_lines)
        lines = [run.lines[example.id] for example in case.selected]
        result = run.summary
        if missing or unmeasured_lines or result is None or result.data.examples != len(lines):
            batch_size = largest_batch(lines, filter(None, [run.summary]))
            about = current.model_copy(update={"started": run.manifest.provenance.started, "batch": batch_size})
            with _discarded_where_nothing_is_scored(run):
                result = run.finish(result_of(run.manifest.run_id, built_method, case, lines, peaks, about))
        elif result.split != case.split:  # the same data from a file with another name
            data = result.data.model_copy(update={"note": case.data.note})
            result = run.finish(result.model_copy(update={"split": case.split, "data": data}))
    return result.placed(run.folder, {line.id: line.compared() for line in lines if line.quality is not None})


@contextlib.contextmanager
def _errors_placed(label: str, case: TaskCase, run: OpenRun, *, in_order: bool) -> Iterator[None]:
    """Add to an error that is no user's mistake where it happened: its traceback alone does not say that.

    Args:
        label: of the method.
        case: the task and its examples.
        run: the run, of whose examples the first that is not stored has failed.
        in_order: whether examples are computed one after the other.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        numbers = enumerate(case.selected, start=(case.first or 0) + 1)
        failed = next((number for number, example in numbers if example.id not in run.lines), None)
        place = f"at example {failed} of" if in_order and failed is not None else "on"
        error.add_note(
            f"{label} failed {place} {case.label}; finished runs are kept: correct it and run the same command again."
        )
        raise


@contextlib.contextmanager
def _discarded_where_nothing_is_scored(run: OpenRun) -> Iterator[None]:
    """Leave nothing of a run that is refused because all its examples were skipped: no command can end it."""
    try:
        yield
    except UserError:
        if all(line.quality is None for line in run.lines.values()):
            run.lines = {}
        raise


def warm_meter(method: AnyMethod, seed: int, counting: bool) -> Meter:
    """A new meter of a method that has read once, so that one-off costs are not part of the first example.

    A second reading under the watch shows whether the cheaper counting of products misses any.
    """
    backbone = method.backbone
    added = method.added_parameters * backbone.dtype.itemsize
    tokens_BT = torch.arange(WARM_UP_TOKENS, device=backbone.device)[None] % backbone.vocab_size
    with seeded_example(seed, "", str(backbone.device)):
        # One-off computations, above all the empty state, must not be in only one of the two counts.
        state = method.start()
        with ProductCounter() as products:
            method.read(state, tokens_BT)
        watching = counting and count(lambda: method.read(state, tokens_BT))[1] != products.flops
    resident = resident_bytes(backbone.model) + added
    return Meter(method, Ledger(backbone.device, counting=counting, watching=watching, resident_bytes=resident))


def tunes(device: torch.device) -> bool:
    """Whether kernels are compiled for a device, and tuned, when they first meet tensors of a shape."""
    return device.type != "cpu"


def _tuned(meter: Meter, case: TaskCase, index: int, seed: int) -> None:
    """Evaluate an example without a record, so that what is compiled for its shapes is not timed with it."""
    _example(Meter(meter.method, Ledger(meter.backbone.device, counting=False)), case, index, seed)


def _measure(
    meter: Meter, case: TaskCase, run: OpenRun, seed: int, peaks: Peaks, unmeasured_lines: Sequence[ExampleLine]
) -> Peaks:
    """The highest peaks of all stored examples; where the products missed FLOPs, lines are counted again.

    Args:
        meter: the meter of this command's examples.
        case: the task and its examples.
        run: the stored run.
        seed: seed of the run.
        peaks: peaks of an earlier command.
        unmeasured_lines: lines of a command that ended before measuring; the largest of all lines is run again if it
            is one of them.
    """
    index = {example.id: number for number, example in enumerate(case.dataset.examples)}
    again = {line.id for line in unmeasured_lines} & index.keys()
    for phase in PHASES:
        # Among equal lines the newest, whose calls can be run again.
        largest = max(reversed(run.lines.values()), key=lambda line: largest_bytes(line, phase))
        if phase in largest.cost and largest.id in again:
            _example(meter, case, index[largest.id], seed)
    peaks = peaks.with_measured(meter.ledger.peaks(), len(run.lines))
    # A command that ended while it counted again leaves lines of both kinds.
    if meter.ledger.missed or any(line.recounted for line in run.lines.values()):
        watch = Meter(meter.method, meter.ledger.watching_one())
        for line in [line for line in run.lines.values() if not line.recounted and line.id in index]:
            run.append(recounted(line, _example(watch, case, index[line.id], seed)))
    return peaks


def _batches(
    meter: Meter, case: TaskCase, seed: int, size: batches.Size, say: Callable[[str], None]
) -> batches.Batches:
    examples, device = case.dataset.examples, str(meter.backbone.device)
    return batches.Batches(
        size,
        meter,
        line=lambda of_example, index: _line(of_example, case, index),
        draws=lambda index: process.RandomTurns(_seed(seed, examples[index].id), device),
        lengths=batches.lengths_of(examples) if size != 1 else (),
        note=say,
    )


def _example(meter: Meter, case: TaskCase, index: int, seed: int) -> ExampleLine:
    # Every example has its own seed, so that a resumed run draws the same numbers.
    with seeded_example(seed, case.dataset.examples[index].id, str(meter.backbone.device)):
        return _line(meter, case, index)


def _line(meter: Meter, case: TaskCase, index: int) -> ExampleLine:
    example = case.dataset.examples[index]
    meter.example = example.id
    record = case.protocol.evaluate(meter, example, case.other(index))
    skipped = "skipped" in record
    quality = None if skipped else case.protocol.quality(record)
    parts = {} if skipped else case.protocol.parts(record)
    line = {"id": example.id, "index": index, "record": record, "quality": quality, "parts": parts}
    try:
        return ExampleLine.model_validate(json.loads(json.dumps({**line, **meter.take()})))
    except (TypeError, ValueError) as error:
        reason = first_fault(error) if isinstance(error, pydantic.ValidationError) else error
        raise UserError(
            f"What {case.name} records of example '{example.id}' cannot be stored ({reason}): correct the task."
        ) from error


def seeded_example(seed: int, example: str, device: str = "cpu") -> AbstractContextManager[None]:
    """Random numbers of one example of a run with this seed; no other thread computes one in the meantime."""
    return process.seeded(_seed(seed, example), device)


def _seed(seed: int, example: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}\0{example}".encode()).digest()[:4])
