"""A whole training run: from its names to its weights and their card, resumable at every moment."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from contextlab import backbone as backbones
from contextlab import cards, files, naming, process, registry, tensors
from contextlab.backbone import Backbone
from contextlab.backbone.embedded import EMBEDDED
from contextlab.errors import UserError
from contextlab.method import AnyMethod
from contextlab.naming import NamedMethod
from contextlab.training import best, card, checkpoint, course, hub, records
from contextlab.training.board import board
from contextlab.training.checkpoint import Extra
from contextlab.training.corpus import Corpus, prepare
from contextlab.training.loop import NotFinite, Trainer
from contextlab.training.options import TrainConfig
from contextlab.training.processes import Processes
from contextlab.training.records import Curve
from contextlab.training.registry import named_objective
from contextlab.training.search import searched
from contextlab.training.streams import Streams
from contextlab.training.validation import Stopped, Validation, Validator

RUN, CURVE = "run.json", "curve.jsonl"

CurveLine = dict[str, Any]


def train(
    method: str,
    corpus: str | Path,
    *,
    out: str | Path,
    backbone: str = EMBEDDED,
    device: str | None = None,
    validation_corpus: str | Path | None = None,
    on_line: Callable[[CurveLine], None] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Train what a method learns on the documents of a corpus, and write its weights and their card.

    Called again with the same folder it goes on from the last checkpoint, with exactly the losses of a run that was
    never interrupted.

    Args:
        method: a registered name or `path.py:Class`, perhaps with settings, as `longmem(K=32)`, which begins as
            initialised; or the name of trained weights, which it then begins with.
        corpus: folder, file or `hub:NAME`; see `sources.open_source`.
        out: folder of checkpoints, curve, weights and card.
        backbone: name, hub id, folder or GGUF file, with updates after a `+`.
        device: torch device; chosen by the machine when None.
        validation_corpus: of the texts that validation reads, in the forms of `corpus`, which is then trained on as a
            whole; documents of `corpus` that are held back when None.
        on_line: called with every line of the curve.
        **options: fields of `options.TrainConfig`, `tokens` at least.

    Returns:
        The card.

    Raises:
        UserError: for a wrong name, setting, corpus or folder, a checkpoint that does not fit, or a loss that is not
            finite.
    """
    named = _untrained(naming.single(method))
    settings = TrainConfig.of(named.kind.Config, options)
    folder = _folder(out)
    if settings.searched and "lr" in options:
        raise UserError("lr names one learning rate, and grid several to choose from: keep one of the two.")
    train_once = functools.partial(_trained, named, corpus, validation_corpus, backbone, device)
    settings, trials, start = searched(settings, folder / "grid", train_once)
    return train_once(settings, folder, on_line or (lambda _: None), trials, start)


def _trained(
    named: NamedMethod,
    corpus: str | Path,
    validation_corpus: str | Path | None,
    backbone: str,
    device: str | None,
    settings: TrainConfig,
    folder: Path,
    on_line: Callable[[CurveLine], None] = lambda _: None,
    trials: Sequence[dict[str, Any]] = (),
    start: CurveLine | None = None,
) -> dict[str, Any]:
    """The card of one training, with one learning rate; see `train`.

    Args:
        named: method to train.
        corpus: to train on.
        validation_corpus: that validation reads.
        backbone: its name.
        device: torch device.
        settings: of the training.
        folder: of checkpoints, curve, weights and card.
        on_line: called with every line of the curve.
        trials: of the learning rate, for the card.
        start: validation before the first step, where another training has begun with the same weights and texts.
    """
    processes = Processes()
    with contextlib.ExitStack() as stack:
        if processes.first:
            stack.enter_context(records.held(folder))
        # A training draws from the generators of the process from its first step to its last.
        stack.enter_context(process.ALONE)
        model = backbones.load(backbone, device=device or processes.device, dtype="float32")
        stack.enter_context(torch.random.fork_rng([model.device] if model.device.type == "cuda" else []))
        torch.manual_seed(settings.seed)
        texts, held_back = _corpora(corpus, validation_corpus, model)
        name = registry.without_folder(named.name)
        run = _Run(name, named.build(model), texts, held_back, settings, folder, processes)
        return run.completed(on_line, trials, start)


def _untrained(named: NamedMethod) -> NamedMethod:
    """The method with its weights as initialised, unless some are named."""
    settings = named.config.as_dict()
    if settings.get("weights") != "auto":
        return named
    config = named.kind.Config.parse({**settings, "weights": "none"}, named.name)
    return dataclasses.replace(named, config=config)


def _corpora(corpus: str | Path, validation: str | Path | None, backbone: Backbone) -> tuple[Corpus, Corpus]:
    """The corpus to train on, and the one whose held-back documents validation reads, which may be the same."""
    texts = prepare(corpus, backbone)
    if validation is None:
        texts = texts.with_ends_held_back()
        return texts, texts
    held_back = dataclasses.replace(prepare(validation, backbone), held="all")
    return texts.beside(held_back), held_back


def _folder(out: str | Path) -> Path:
    folder = Path(out).expanduser()
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file: name a folder with --out.")
    return folder


class _Run:
    """One run: what it trains, on what, and where it is kept."""

    def __init__(
        self,
        name: str,
        method: AnyMethod,
        corpus: Corpus,
        held_back: Corpus,
        settings: TrainConfig,
        out: Path,
        processes: Processes,
    ) -> None:
        self.name, self.method, self.corpus, self.settings, self.out = name, method, corpus, settings, out
        self.held_back = held_back
        self.processes, self.begun = processes, method.card
        self.segment = settings.length(method.capabilities.segment, method.backbone.max_positions)
        corpus.check(self.segment)
        rows, rank = settings.rows, processes.rank
        streams = Streams(
            corpus,
            corpus.training,
            rows * processes.count,
            self.segment,
            settings.seed,
            shuffled=settings.order == "shuffled",
            sequence=settings.text(self.segment),
            mine=range(rank * rows, (rank + 1) * rows),
            device=method.backbone.device,
        )
        objective = named_objective(settings.objective, method, corpus)
        objective.check(self.segment)
        self.trainer = Trainer(method, streams, objective, settings, processes)
        self.validator = Validator(method, held_back, settings, self.segment)
        self.best = best.BestWeights(out)
        self.about = course.of(name, method, corpus, held_back, settings)

    def completed(
        self, on_line: Callable[[CurveLine], None], trials: Sequence[dict[str, Any]], start: CurveLine | None
    ) -> dict[str, Any]:
        """All steps that are left, and the card, with the trials of the learning rate; see `_trained`."""
        self.trials, self.start = trials, start
        stored = course.matched(self.out / RUN, self.about, self.settings)
        finished = self._finished()
        if finished is not None:
            return finished
        extra = Extra()
        torch.manual_seed(self.settings.seed + self.processes.rank)
        if checkpoints := checkpoint.stored(self.out):
            extra = checkpoint.load(checkpoints[0], self.trainer, course.digest(self.about))
            if extra.training is not None:
                course.check(self.out, self.settings, extra.training)
        self.parts = _continued(extra.parts, self.trainer)
        if stored is None and self.processes.first:
            records.write(self.out / RUN, self.about)
        self.curve = Curve(self.out / CURVE if self.processes.first else None, extra.curve, extra.curve_sha256)
        if self.processes.first:
            self.best.resume(extra.best)
        self.validations: list[CurveLine] = [*extra.validations]
        self._add_last_of_a_shorter_run()
        if self.validations:
            last = self.validations[-1]["validation"]
            self.validator.references = last["window"], last["full"]
        self.on_line = on_line
        self.board = board(self.settings.log, self.out, self.trainer.progress.tokens, first=self.processes.first)
        try:
            with _signals() as stop:
                self._train(stop)
                return self._finish(stop)
        finally:
            self.curve.close()

    def _add_last_of_a_shorter_run(self) -> None:
        """Add the validation with which a shorter run ended after its last checkpoint: its weights may be the best."""
        validated = self.validations[-1]["tokens"] if self.validations else 0
        written = records.read(self.out / cards.CARD)
        tokens = written and records.last_tokens(written)
        at = self.trainer.progress.tokens
        if not written or not tokens or not validated < tokens == at < self.settings.tokens:
            return
        line = {"tokens": tokens, "validation": {k: v for k, v in written["curve"][-1].items() if k != "tokens"}}
        self.validations.append(line)
        self.curve.append(line)
        weights = self.out / cards.FILE
        whole = weights.is_file() and files.sha256(weights) == written["weights"]["sha256"]
        if self.processes.first and whole and self._is_lowest:
            self.best.keep_last(weights, tokens, self._losses[-1])

    def _finished(self) -> dict[str, Any] | None:
        """The card of a run that has had all its tokens with whole weights and curve; else these are made again."""
        written = records.read(self.out / cards.CARD)
        if written is None:
            return None
        own_card, weights = cards.read(self.out / cards.CARD), self.out / cards.FILE
        training = written.get("training")
        enough = isinstance(training, dict) and (
            training.get("tokens", 0) >= self.settings.tokens
            or (written.get("stopped") is not None and training.get("patience") == self.settings.patience)
        )
        whole = weights.is_file() and files.sha256(weights) == own_card.weights.sha256
        whole = whole and not best.is_lost(self.out, written)
        return written if enough and whole and records.ended(self.out / CURVE, written) else None

    def _train(self, stop: threading.Event) -> None:
        """Steps, validations and checkpoints until all tokens are learned from, or the user stops it."""
        trainer = self.trainer
        saved, started, before_run = time.monotonic(), time.monotonic(), dataclasses.replace(trainer.progress)
        self._validate_if_due(stop)
        stopped, stale = self._agreed(stop.is_set(), self._stale)
        if stopped:
            raise KeyboardInterrupt
        while trainer.progress.tokens < self.settings.tokens and not stale:
            step = trainer.step()
            learned = step.tokens - before_run.tokens
            # Validation and checkpoints take time too.
            seconds_left = (time.monotonic() - started) / learned * max(self.settings.tokens - step.tokens, 0)
            speed = learned / (trainer.progress.seconds - before_run.seconds)
            self._say({**step.line(), "tokens_per_second": speed, "seconds_left": seconds_left})
            self._validate_if_due(stop)
            due = time.monotonic() - saved >= self.settings.checkpoint_every
            stopped, due, stale = self._agreed(stop.is_set(), due, self._stale)
            if stopped or due:
                self._save()
                saved = time.monotonic()
            if stopped and trainer.progress.tokens < self.settings.tokens and not stale:
                raise KeyboardInterrupt

    @property
    def _losses(self) -> list[float]:
        """Losses on held-back texts during the training, without that before the first step."""
        return [line["validation"]["loss"] for line in self.validations if line["tokens"]]

    @property
    def _stale(self) -> bool:
        """Whether the loss on held-back texts has not fallen for as many validations as the user waits."""
        losses, patience = self._losses, self.settings.patience
        if patience is None or not losses:
            return False
        return len(losses) - 1 - losses.index(min(losses)) >= patience

    def _agreed(self, *wishes: bool) -> list[bool]:
        """Whether any of the processes wishes it: all of them do the same."""
        return [bool(sum_) for sum_ in self.processes.add([torch.tensor(wishes, dtype=torch.float64)])[0].tolist()]

    def _validate_if_due(self, stop: threading.Event) -> None:
        """Validate before the first step and after every so many tokens; one that the user stops stays due."""
        tokens, every = self.trainer.progress.tokens, self.validator.every(self.settings)
        last = self.validations[-1]["tokens"] if self.validations else -every
        if last // every < tokens // every and tokens < self.settings.tokens and self.processes.first:
            with contextlib.suppress(Stopped):
                self._validate(stop)
                if self._is_lowest:
                    self.best.keep(self._save_weights, tokens, self._losses[-1])

    def _validate(self, stop: threading.Event) -> None:
        """Validate; raises `Stopped` where the user asks to stop, and `NotFinite`."""
        if self.start is not None and not self.trainer.progress.tokens:
            validation = Validation(**{name: value for name, value in self.start.items() if name != "tokens"})
            self.validator.references = validation.window, validation.full
        else:
            device = self.method.backbone.device
            with torch.random.fork_rng([device] if device.type == "cuda" else []):
                validation = self.validator(stop.is_set)
        tokens = self.trainer.progress.tokens
        if tokens and not math.isfinite(validation.loss):
            raise NotFinite(
                f"The loss on held-back texts is not finite after {tokens:,} tokens: use a smaller --lr, or --set "
                "dtype=float32, and another --out."
            )
        line = {"tokens": tokens, "validation": validation.line()}
        self.validations.append(line)
        self._say(line)

    @property
    def _is_lowest(self) -> bool:
        """Whether the last loss on held-back texts is the lowest."""
        losses = self._losses
        return bool(losses) and losses[-1] == min(losses)

    def _save_weights(self, path: Path) -> None:
        self.method.save_weights(path, dtype=tensors.dtype_named(self.settings.storage))

    def _say(self, line: CurveLine) -> None:
        if self.processes.first:
            self.curve.append(line)
            self.board(line)
            self.on_line(line)

    def _save(self) -> None:
        curve = self.curve
        extra = Extra(
            course=course.digest(self.about),
            training=self.settings.as_dict(),
            parts=self.parts,
            curve=curve.length,
            curve_sha256=curve.sha256(),
            validations=self.validations,
            best=self.best.record,
        )
        checkpoint.save(self.out, self.trainer, extra)
        if self.processes.first:
            self.best.settle()

    def _finish(self, stop: threading.Event) -> dict[str, Any]:
        """Keep the last checkpoint, write the weights, and measure what was written."""
        self._save()
        written = not self.processes.first or self._write(stop)
        if self._agreed(not written)[0]:
            raise KeyboardInterrupt
        return records.read(self.out / cards.CARD) or {}

    def _write(self, stop: threading.Event) -> bool:
        """Write weights, card and page; False, and none of them, where the user stops the validation of the weights.

        The weights get their name together with their card: what begins with them before has no record of their cost.
        """
        path = self.out / f".{cards.FILE}"
        self._save_weights(path)
        self.method.load_weights(path)
        try:
            self._validate(stop)
        except Stopped:
            path.unlink()
            return False
        except NotFinite:
            path.unlink()
            raise
        written = card.of(
            self.name,
            self.method,
            self.corpus,
            self.held_back,
            self.settings,
            self.trainer,
            [(line["tokens"], Validation(**line["validation"])) for line in self.validations],
            self.curve.lines(),
            path,
            self.parts,
            self.begun,
        )
        written |= {"grid": list(self.trials), "best": self._best(), "stopped": self._stopped}
        # Between two cards there is none: that of the weights before would not be theirs.
        (self.out / cards.CARD).unlink(missing_ok=True)
        if self._is_lowest:
            self.best.keep_last(path, self.trainer.progress.tokens, self._losses[-1])
        files.rename(path, self.out / cards.FILE)
        records.write(self.out / cards.CARD, written)
        files.write(self.out / hub.README, hub.readme(written))
        return True

    @property
    def _stopped(self) -> int | None:
        """Tokens after which the training ended early; None where it had all of them."""
        tokens = self.trainer.progress.tokens
        return tokens if tokens < self.settings.tokens else None

    def _best(self) -> dict[str, Any] | None:
        """The weights with the lowest loss on held-back texts, where they are not the last ones and not lost."""
        record = self.best.record
        if record is None or self._is_lowest or record["loss"] > min(self._losses):
            return None
        return {**record, "file": best.FILE}


def _continued(parts: Sequence[dict[str, Any]], trainer: Trainer) -> list[dict[str, Any]]:
    """The parts of a run, with a further one where something beside its settings is not as it was in the last."""
    about = card.surroundings(trainer)
    if parts and {**parts[-1], **about} == parts[-1]:
        return list(parts)
    return [*parts, {"tokens": trainer.progress.tokens, **about}]


@contextlib.contextmanager
def _signals() -> Iterator[threading.Event]:
    """Set when the user asks to stop; a second time ends the process as always."""
    stop_requested = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop_requested
        return
    before = {caught: signal.getsignal(caught) for caught in (signal.SIGINT, signal.SIGTERM)}

    def stop(number: int, _frame: Any) -> None:
        stop_requested.set()
        signal.signal(number, before[signal.Signals(number)])

    for caught in before:
        signal.signal(caught, stop)
    try:
        yield stop_requested
    finally:
        for caught, handler in before.items():
            signal.signal(caught, handler)
