from __future__ import annotations

import dataclasses
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from forks import forks
from installed import METHODS

import contextlab
from contextlab import backbone, registry
from contextlab.accounting.ledger import Meter
from contextlab.benchmarks.examples import Choice
from contextlab.benchmarks.task import Dataset, Options
from contextlab.errors import UserError
from contextlab.harness import identity as identities
from contextlab.harness import runner
from contextlab.harness.case import TaskCase
from contextlab.harness.runner import Results, bench
from contextlab.harness.store import read_result
from contextlab.harness.stored import ExampleLine, StoredModel, minor
from contextlab.reports.layout import TableLayout
from contextlab.reports.stored import load_results
from contextlab.reports.tables import comparison

TOY = Path(__file__).with_name("toy_parts.py")
COUNTER, OTHER, LETTERS, HIDDEN, HIDDEN_LATE = (
    f"{TOY}:{name}" for name in ("Counter", "Other", "Letters", "Hidden", "HiddenLate")
)
IDS = [f"{work}/{n}" for n, work in enumerate("abcdabcd")]
CHILD = """
import sys
from contextlab.harness.runner import bench
bench(sys.argv[1], sys.argv[2], backbone="tiny-llama", device="cpu", out=sys.argv[3])
"""
# What scripts outside rely on.
PROMISED = {
    "": "schema run_id method method_config task split context history backbone metrics",
    "data": "source sha256 examples",
    "cost": "train contextualize query",
    "cost.contextualize": "flops peak_bytes seconds tokens",
    "cost.query": "flops peak_bytes seconds tokens",
    "state": "bytes floats tokens",
    "parameters": "backbone added trained",
    "provenance": "contextlab commit torch transformers device dtype seed prompt_sha256 weights_sha256 started command",
}


def run(out: Path, methods: Any = COUNTER, tasks: Any = LETTERS, **options: Any) -> Results:
    return bench(methods, tasks, backbone="tiny-llama", device="cpu", out=out, **options)


def stored(out: Path) -> list[dict[str, Any]]:
    (path,) = out.glob("*/examples.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def without_time(value: Any) -> Any:
    if isinstance(value, StoredModel):
        return without_time(value.as_json())
    if isinstance(value, dict):
        timed = ("seconds", "seconds_spread", "started", "command", "seal")
        return {k: without_time(v) for k, v in value.items() if k not in timed}
    return [without_time(item) for item in value] if isinstance(value, list) else value


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "log"
    path.write_text("")
    monkeypatch.setenv("TOY_LOG", str(path))
    return path


def test_a_result_is_the_contracts_object(tmp_path: Path) -> None:
    (result,) = run(tmp_path, limit=4).runs
    stored = json.loads((tmp_path / result.run_id / "summary.json").read_text())
    for path, names in PROMISED.items():
        part = functools.reduce(lambda value, key: value[key], filter(None, path.split(".")), stored)
        assert part.keys() >= set(names.split()), path
    assert stored["schema"] == 2
    assert stored["metrics"] == {"accuracy": {"value": 1.0, "low": 0.5, "high": 1.0, "n": 4}}
    assert stored["cost"]["contextualize"]["tokens"] == 8
    assert stored["cost"]["query"]["tokens"] == 2
    assert stored["state"]["tokens"] == 8
    assert read_result(tmp_path / result.run_id).placed(result.folder, result.parts) == result


RAISES = """
import os
from contextlab.errors import UserError
from contextlab.methods.window import Window

class Raises(Window):
    def read(self, *arguments, **options):
        if error := os.environ.get("TOY_ERROR"):
            raise {"bug": RuntimeError("my bug"), "user": UserError("Give it a seed.")}[error]
        return super().read(*arguments, **options)
"""


def test_an_error_of_a_method_says_where_it_failed_and_what_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "raises.py").write_text(RAISES)
    monkeypatch.chdir(tmp_path)
    run(tmp_path / "runs", "raises.py:Raises", limit=2)
    monkeypatch.setenv("TOY_ERROR", "bug")
    where = {1: "at example 3 of", 4: "on"}
    for batch, words in where.items():
        with pytest.raises(RuntimeError, match="my bug") as error:
            run(tmp_path / "runs", "raises.py:Raises", limit=4, batch=batch)
        (note,) = error.value.__notes__
        assert re.fullmatch(
            rf"raises\.py:Raises failed {words} .*Letters/\w+; finished runs are kept: correct it and run the same "
            r"command again\.",
            note,
        )
    monkeypatch.setenv("TOY_ERROR", "user")
    with pytest.raises(UserError) as mistake:
        run(tmp_path / "runs", "raises.py:Raises", limit=4)
    assert not hasattr(mistake.value, "__notes__")


def test_results_are_short_in_words_and_long_as_frames(tmp_path: Path) -> None:
    results = run(tmp_path, f"{COUNTER}(prior=0.5),{OTHER}", limit=2)
    assert repr(results).splitlines() == [
        "2 runs",
        f"{COUNTER}(prior=0.5) on {LETTERS}/short (own): accuracy 1.000, n = 2",
        f"{OTHER} on {LETTERS}/short (own): accuracy 1.000, n = 2",
    ]
    assert results._repr_html_().count("<tr") == 3
    assert list(results.to_pandas()["label"]) == [f"{COUNTER}(prior=0.5)", OTHER]
    examples = results.examples
    assert list(examples["id"]) == [*IDS[:2], *IDS[:2]]
    assert list(examples["quality"]) == [1.0] * 4
    assert list(examples["run"].unique()) == [result.run_id for result in results.runs]


def test_without_context_that_phase_has_no_cost(tmp_path: Path) -> None:
    (result,) = run(tmp_path, limit=2, context="none").runs
    assert result.cost.contextualize is None
    assert result.state is not None
    assert result.state.tokens == 0


def test_runs_come_context_by_task_by_method_and_are_announced(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []
    results = run(tmp_path, f"{COUNTER},{OTHER}", context=["own", "none"], limit=1, on_result=seen.append)
    order = [(result.context, result.method) for result in results.runs]
    assert order == [(context, method) for context in ("own", "none") for method in (COUNTER, OTHER)]
    assert seen == results.runs
    frame = results.to_pandas()
    assert list(frame["metrics.accuracy.value"]) == [result.metrics["accuracy"].value for result in results.runs]


def test_paired_differences_tell_the_context_from_having_one(tmp_path: Path) -> None:
    differences = run(tmp_path, context="own,none,wrong").differences
    by_control = {d.label.rpartition(" ")[2]: d.metric.value for d in differences}
    assert by_control == {"none": 0.5, "wrong": 0.5}
    assert {(d.task, d.measure, d.metric.n) for d in differences} == {(f"{LETTERS}/short", "accuracy", 8)}
    assert run(tmp_path, context="none,wrong").differences == []


def test_the_terminal_and_the_table_compare_alike(tmp_path: Path) -> None:
    results = run(tmp_path, f"{COUNTER},{OTHER}", settings={"prior": 30})
    (difference,) = results.differences
    assert difference.metric.low is not None
    assert difference.metric.high is not None
    cell = f"{difference.metric.value:+.3f} [{difference.metric.low:+.3f}, {difference.metric.high:+.3f}]"
    stored = load_results(tmp_path)
    table = comparison(stored, TableLayout(baselines=(COUNTER,))).to_frame()
    assert table.loc[(OTHER,), f"accuracy - {COUNTER}(prior=30.0)"] == cell
    by_run = {result.run_id: result.parts for result in stored}
    assert [by_run[result.run_id] for result in results.runs] == [result.parts for result in results.runs]


def test_the_wrong_context_is_the_next_of_another_work() -> None:
    examples = tuple(Choice(str(n), work, "", (), 0) for n, work in enumerate("aabca"))
    dataset = Dataset(examples, "sample", "", "")
    case = TaskCase("toy", registry.task(LETTERS), "short", Options(), dataset, None, 2)  # type: ignore[arg-type]
    assert [case.other(index).id for index in range(5)] == ["2", "2", "3", "4", "2"]
    assert [example.id for example in case.selected] == ["0", "1"]


def test_a_longer_limit_goes_on_and_a_shorter_one_reads_back(tmp_path: Path, log: Path) -> None:
    ids = [run(tmp_path / "runs", limit=limit).runs[0] for limit in (2, 5, 3, None, None)]
    assert log.read_text().split() == IDS
    assert len({result.run_id for result in ids}) == 1
    assert [result.data.examples for result in ids] == [2, 5, 3, 8, 8]
    assert [result.metrics["accuracy"].n for result in ids] == [2, 5, 3, 8, 8]
    assert ids[3] == ids[4]
    assert [line["id"] for line in stored(tmp_path / "runs")] == IDS


def test_tasks_of_files_with_the_same_name_are_two(tmp_path: Path) -> None:
    for language in ("de", "en"):
        (tmp_path / language).mkdir()
        line = {"context": f"{language} text", "question": "what?", "answers": [language]}
        (tmp_path / language / "test.jsonl").write_text("".join(json.dumps({**line, "id": n}) + "\n" for n in "ab"))
    tasks = [f"questions(path={tmp_path / language / 'test.jsonl'},metric=contains)" for language in ("de", "en")]
    results = run(tmp_path / "runs", ["window", "sliding"], tasks)
    assert len({result.run_id for result in results.runs}) == len(results.runs) == 4
    assert len({difference.task for difference in results.differences}) == len(results.differences) == 2


def test_a_run_that_goes_on_one_by_one_keeps_its_largest_batch(tmp_path: Path) -> None:
    first, second = (
        run(tmp_path / "runs", "window", limit=limit, batch=batch).runs[0] for limit, batch in ((4, 2), (5, 1))
    )
    assert first.provenance.batch == second.provenance.batch == 2


def test_an_interrupted_run_ends_like_one_without_interruption(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (whole,) = run(tmp_path / "whole").runs
    log.write_text("")
    with monkeypatch.context() as patch:
        patch.setenv("TOY_INTERRUPT", IDS[3])
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "cut")
    (resumed,) = run(tmp_path / "cut").runs
    assert log.read_text().split() == [*IDS[:4], *IDS[3:]]
    assert without_time(resumed) == without_time(whole)
    assert without_time(stored(tmp_path / "cut")) == without_time(stored(tmp_path / "whole"))


def test_nothing_is_left_of_a_run_in_which_nothing_can_be_scored(tmp_path: Path) -> None:
    """No command can end it, and tables would call it unfinished for ever."""
    (tmp_path / "short.txt").write_text("short")
    with pytest.raises(UserError, match="lower --history or scored="):
        bench(
            "window", f"texts(path={tmp_path / 'short.txt'},history=400)", backbone="tiny-llama", out=tmp_path / "out"
        )
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file() and path.name != ".lock"]


def test_the_peak_is_unknown_where_some_examples_were_not_counted(tmp_path: Path) -> None:
    """They were not measured either."""
    run(tmp_path, limit=3, counting=False)
    (result,) = run(tmp_path).runs
    assert result.cost.query is not None
    assert result.cost.query.flops is None
    assert result.cost.query.peak_bytes is None


def test_a_killed_run_ends_like_one_without_interruption(tmp_path: Path, log: Path) -> None:
    (whole,) = run(tmp_path / "whole").runs
    log.write_text("")
    environment = {**os.environ, "TOY_SECONDS": "0.2", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", CHILD, COUNTER, LETTERS, str(tmp_path / "cut")]
    with subprocess.Popen(command, env=environment) as child:
        while len(log.read_text().split()) < 4 and child.poll() is None:
            time.sleep(0.02)
        child.send_signal(signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL
    finished = [line["id"] for line in stored(tmp_path / "cut")]
    assert finished == IDS[: len(finished)]
    assert 3 <= len(finished) < 8
    (resumed,) = run(tmp_path / "cut").runs
    assert without_time(resumed) == without_time(whole)
    assert without_time(stored(tmp_path / "cut")) == without_time(stored(tmp_path / "whole"))


# Float32 shows smaller differences.
@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
@pytest.mark.parametrize("method", METHODS)
def test_a_run_that_goes_on_has_bitwise_the_results_of_one_at_once(method: str, dtype: str, tmp_path: Path) -> None:
    # Full attention, before a press too, refuses prompts that are longer than the small model's positions.
    context = "none" if method in ("full", "press") else "own"
    options: dict[str, Any] = {"tasks": "sst2", "split": "n2", "dtype": dtype, "context": context}
    for limit in (1, 2):
        run(tmp_path / "parts", method, limit=limit, **options)
    run(tmp_path / "whole", method, limit=2, **options)
    assert without_time(stored(tmp_path / "parts")) == without_time(stored(tmp_path / "whole"))


def test_where_kernels_are_tuned_the_first_example_runs_once_before_it_is_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluated = list[int]()
    example = runner._example

    def counted(meter: Meter, case: TaskCase, index: int, seed: int) -> ExampleLine:
        evaluated.append(index)
        return example(meter, case, index, seed)

    monkeypatch.setattr(runner, "_example", counted)
    records = []
    for tunes in (False, True):
        monkeypatch.setattr(runner, "tunes", lambda _device, tunes=tunes: tunes)
        run(tmp_path / str(tunes), limit=2)
        records.append([line["record"] for line in stored(tmp_path / str(tunes))])
    assert evaluated == [0]
    assert records[0] == records[1]
    assert len(records[0]) == 2


def test_without_counting_the_results_are_the_same_and_costs_are_blank(tmp_path: Path) -> None:
    (counted,), (plain,) = (
        run(tmp_path / str(counting), "hso", "sst2", split="n2", limit=2, counting=counting).runs
        for counting in (True, False)
    )
    assert plain.metrics == counted.metrics
    without, query = plain.cost.query, counted.cost.query
    assert without is not None
    assert query is not None
    assert (without.flops, without.peak_bytes) == (None, None)
    assert (query.flops or 0) > 0
    assert (query.peak_bytes or 0) > 0
    assert [line["record"] for line in stored(tmp_path / "True")] == [
        line["record"] for line in stored(tmp_path / "False")
    ]


@pytest.mark.parametrize("name", METHODS)
def test_no_built_in_method_is_run_twice_to_be_counted(name: str) -> None:
    method = registry.method_class(name)(backbone.load("tiny-llama", device="cpu"))
    with torch.set_grad_enabled(method.capabilities.needs_gradients):
        meter = runner.warm_meter(method, 0, True)
    assert not meter.ledger._watching


def test_products_that_python_does_not_call_are_counted_too(tmp_path: Path) -> None:
    (plain,) = run(tmp_path / "plain", "window", "sst2", split="n2", limit=2).runs
    (hidden,) = run(tmp_path / "hidden", HIDDEN, "sst2", split="n2", limit=2).runs
    (late,) = run(tmp_path / "late", HIDDEN_LATE, "sst2", split="n2", limit=2).runs
    flops = [
        {phase: cost.flops or 0 for phase, cost in result.cost.phases().items()} for result in (plain, hidden, late)
    ]
    for phase in ("contextualize", "query"):
        assert flops[0][phase] < min(flops[1][phase], flops[2][phase])
    assert flops[1]["query"] == flops[2]["query"]


def test_every_example_draws_from_its_own_seed(tmp_path: Path) -> None:
    for name, options in {"a": {}, "b": {"methods": OTHER}, "c": {"seed": 1}}.items():
        run(tmp_path / name, limit=4, **options)
    draws = {name: [line["record"]["draw"] for line in stored(tmp_path / name)] for name in "abc"}
    assert draws["a"] == draws["b"]
    assert len({*draws["a"], *draws["c"]}) == 8


def test_settings_reach_the_methods_that_have_them(tmp_path: Path) -> None:
    results = run(tmp_path, [COUNTER, OTHER], limit=1, settings={"prior": "0.5"})
    assert [result.method_config for result in results.runs] == [{"prior": 0.5}, {}]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"methods": "nothing-like-it"}, "There is no method 'nothing-like-it'"),
        ({"tasks": "nothing-like-it"}, "There is no task 'nothing-like-it'"),
        ({"split": "shrt"}, "did you mean 'short'"),
        ({"context": "onw"}, "did you mean 'own'"),
        ({"settings": {"pior": 1}}, "did you mean 'prior'"),
        ({"settings": {"prior": -1}}, "prior=-1 of .*:Counter is not valid"),
        ({"limit": 0}, "--limit 0"),
        ({"methods": ", "}, "No method is named"),
        ({"split": "one", "context": "wrong"}, "single work"),
        ({"data": "/nowhere"}, "/nowhere"),
        ({"history": 4}, "No setting of .* is called history: leave --history out"),
    ],
)
def test_a_mistake_is_one_sentence_and_leaves_nothing(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        run(tmp_path / "runs", **options)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("ids", [[], ["a", "b", "a"]])
def test_a_data_set_must_have_examples_with_ids_of_their_own(ids: list[str]) -> None:
    examples = tuple(Choice(i, "w", "", (), 0) for i in ids)
    dataset = Dataset(examples, "sample", "", "")
    case = TaskCase("toy", registry.task(LETTERS), "short", Options(), dataset, None, None)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="toy short holds"):
        case.check()


def test_the_identity_changes_with_all_that_could_change_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    model, kind, task = (
        backbone.load("tiny-llama", device="cpu"),
        registry.method_class(COUNTER),
        registry.task(LETTERS),
    )
    dataset = task.load("short", None)
    protocol = task.protocol("short")
    base: dict[str, Any] = {
        "method": ("m", kind(model)),
        "task": ("t", task),
        "split": "short",
        "options": Options(),
        "dataset": dataset,
        "protocol": protocol,
        "seed": 0,
    }
    prompted = task.protocol("short")
    prompted.prompt = "Read this: "
    weighted = type("Weighted", (kind,), {"weights_digest": "0", "__module__": kind.__module__})(model)
    changes: list[dict[str, Any]] = [
        {},
        {"method": ("other", kind(model))},
        {"method": ("m", kind(model, kind.Config.parse({"prior": 2})))},
        {"method": ("m", kind(backbone.load("tiny-gpt2", device="cpu")))},
        {"method": ("m", kind(backbone.load("tiny-llama", device="cpu", dtype="float64")))},
        {"method": ("m", weighted)},
        {"task": ("other", task)},
        {"split": "long"},
        *({"options": Options(**option)} for option in ({"context": "none"}, {"history": 1}, {"tokens": 1})),
        {"dataset": dataclasses.replace(dataset, sha256="0")},
        {"protocol": prompted},
        {"seed": 1},
    ]
    seen = [identities.identity(**{**base, **change}) for change in changes]
    with monkeypatch.context() as patch:
        patch.setattr(identities, "prompt_digest", lambda _: "0")
        seen.append(identities.identity(**base))
    changes_of_code = [
        (torch, "__version__", "0.1"),
        (identities.transformers, "__version__", "0.1"),
        (identities, "SCHEMA", 0),
        (identities, "COUNTING", 0),
        (identities, "code_of", lambda *_: {"module": "0"}),
    ]
    for owner, name, value in changes_of_code:
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, value)
            seen.append(identities.identity(**base))
    texts = [json.dumps(identity, sort_keys=True) for identity in seen]
    assert len(set(texts)) == len(texts)
    # Other code of the same numbers is the same run.
    monkeypatch.setattr(identities, "commit", lambda: "0")
    monkeypatch.setattr(identities, "__version__", "0")
    monkeypatch.setattr(torch, "__version__", f"{minor(torch.__version__)}.99+other")
    longer = identities.identity(**{**base, "dataset": dataclasses.replace(dataset, note="other", source="hub")})
    assert longer == identities.identity(**base)


def test_an_edited_file_is_another_run(tmp_path: Path) -> None:
    copy = Path(shutil.copy(TOY, tmp_path / "own.py"))
    first = run(tmp_path / "runs", f"{copy}:Counter", limit=1).runs[0].run_id
    copy.write_text(copy.read_text() + "\nADDED = 1\n")
    second = run(tmp_path / "runs", f"{copy}:Counter", limit=1).runs[0].run_id
    assert first != second
    assert first.startswith("own-py-counter-toy-parts-py-letters-short-")


HELPED = """
from contextlab.methods.window import Window
from own_helper import FACTOR
class Helped(Window):
    def read(self, state, tokens_BT, lengths_B=None, *, logprobs=True):
        state, logprobs_BT = super().read(state, tokens_BT, lengths_B, logprobs=logprobs)
        return state, None if logprobs_BT is None else logprobs_BT * FACTOR
"""
RUN_IDS = """
from pathlib import Path
from contextlab.harness.runner import bench
from contextlab.kernels.dispatch import forced

def run_id(plugin):
    options = {"split": "n2", "limit": 1, "backbone": "tiny-llama", "device": "cpu", "out": "runs"}
    return bench(plugin, "sst2", **options).runs[0].run_id

print(run_id("own.py:Helped"))
Path("unrelated.py").write_text("CHANGED = 1")
print(run_id(str(Path.cwd() / ".." / Path.cwd().name / "own.py:Helped")))
with forced("reference"):
    print(run_id("own.py:Helped"))
"""


def test_what_a_users_file_imports_from_its_folder_is_part_of_it_and_its_path_is_not(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(HELPED)
    (tmp_path / "own_helper.py").write_text("FACTOR = 1.0")
    (tmp_path / "unrelated.py").write_text("")
    paths = os.pathsep.join([str(tmp_path), *sys.path])
    with forks(tmp_path, {**os.environ, "PYTHONPATH": paths}) as run_ids:
        first, by_path, other_kernels = run_ids(RUN_IDS)
        assert first.startswith("own-py-helped-sst2-n2-")
        assert by_path == first
        assert other_kernels != first
        (tmp_path / "own_helper.py").write_text("FACTOR = 1.5")
        assert first not in run_ids(RUN_IDS)


def test_the_package_offers_load_and_bench(tmp_path: Path) -> None:
    method = contextlab.load(COUNTER, backbone="tiny-llama", device="cpu", prior=2)
    assert method.config.as_dict() == {"prior": 2.0}
    again = contextlab.load(COUNTER, backbone=method.backbone.model, tokenizer=method.backbone.tokenizer)
    assert again.backbone.encode("ab") == method.backbone.encode("ab")
    assert contextlab.bench is bench
    assert {"bench", "load", "results", "train", "__version__"} <= set(dir(contextlab))
    with pytest.raises(AttributeError, match="benhc"):
        _ = contextlab.benhc


def test_a_table_of_a_lower_limit_is_about_the_first_examples_of_the_data(tmp_path: Path) -> None:
    """Also where the store has them in another order, after a line was deleted and its example ran again."""
    run(tmp_path, limit=4)
    (path,) = tmp_path.glob("*/examples.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[1:]))
    run(tmp_path, limit=4)
    run(tmp_path, limit=2)
    assert [line["id"] for line in stored(tmp_path)] == [IDS[1], IDS[2], IDS[3], IDS[0]]
    assert sorted(load_results(tmp_path)[0].parts or {}) == sorted(IDS[:2])


@pytest.mark.parametrize("out", ["", Path(__file__), str(Path(__file__) / "deep")])
def test_a_folder_of_results_that_cannot_be_one_is_refused_before_anything_runs(out: Any, log: Path) -> None:
    with pytest.raises(UserError, match="--out"):
        run(out)
    assert log.read_text() == ""


@pytest.mark.parametrize("record", [{}, {"correct": "yes"}, {"correct": None}])
def test_stored_records_that_were_changed_are_named(tmp_path: Path, record: dict[str, Any]) -> None:
    run(tmp_path, limit=2)
    (path,) = tmp_path.glob("*/examples.jsonl")
    path.write_text("".join(json.dumps({**line, "record": record}) + "\n" for line in stored(tmp_path)))
    with pytest.raises(UserError, match=rf"Line 1 of {path} is broken \(its seal is broken"):
        run(tmp_path, limit=1)


RECORDING = """
from math import inf, nan
from toy_parts import LetterProtocol, Letters

class Odd(LetterProtocol):
    def evaluate(self, meter, example, other):
        return {record}

class OddLetters(Letters):
    def protocol(self, split, context="own"):
        return Odd(self.options(context))
"""


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ("dict(correct=True, draw=nan)", "record.draw: a number is not finite, or too large"),
        ("dict(correct=True, draw={1, 2})", "Object of type set is not JSON serializable"),
        ("dict(correct=inf)", "record.correct: a number is not finite, or too large"),
    ],
)
def test_what_a_task_records_must_be_json(tmp_path: Path, record: str, reason: str) -> None:
    (tmp_path / "odd.py").write_text(RECORDING.replace("{record}", record))
    with pytest.raises(UserError, match=re.escape(f"of example 'a/0' cannot be stored ({reason}): correct the task")):
        run(tmp_path / "runs", tasks=f"{tmp_path}/odd.py:OddLetters", limit=1)
    assert not (tmp_path / "runs").exists() or list((tmp_path / "runs").iterdir()) == []
