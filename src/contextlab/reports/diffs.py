"""Differences between two stored runs: settings, code, data, prompts, and the examples whose quality changed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from contextlab.benchmarks.metrics.estimates import Comparison
from contextlab.benchmarks.task import Measure
from contextlab.errors import UserError, short, unknown
from contextlab.harness import labels
from contextlab.harness.comparison import mean_of
from contextlab.harness.store import SUMMARY, read_manifest, read_result
from contextlab.harness.stored import QUALITY, Parts, Result
from contextlab.reports.cells import ROUNDING
from contextlab.reports.dimensions import named
from contextlab.reports.significance import PartsOf, tested
from contextlab.reports.stored import summaries

MISSING = "-"
DIGEST = 12
"""Characters of a digest that are shown."""
FIELDS = {
    "task": ("task", "split", "context", "history", "tokens"),
    "model": ("backbone", "identity.backbone_config", "identity.tokenizer_sha256", "provenance.weights_sha256"),
    "weights": ("method_weights", "identity.method_files", "twin"),
    "data": ("data.source", "data.sha256", "data.examples", "data.note"),
    "prompts": ("provenance.prompt_sha256",),
    "code": (
        "provenance.contextlab",
        "provenance.commit",
        "identity.source_sha256",
        "identity.method_source",
        "identity.task_source",
        "provenance.counting",
        "provenance.torch",
        "provenance.transformers",
        "identity.kernels",
    ),
    "machine": (
        "provenance.device",
        "provenance.instructions",
        "provenance.threads",
        "provenance.dtype",
        "provenance.seed",
    ),
}
"""Fields that are compared beside the method and its settings, by kind."""


@dataclasses.dataclass(frozen=True)
class Field:
    """Something in which two runs differ.

    Attributes:
        kind: `settings`, `code`, `module` (of the code), `data` and so on.
        name: of the field.
        first: its value in the first run.
        second: its value in the second run.
    """

    kind: str
    name: str
    first: str
    second: str


@dataclasses.dataclass(frozen=True)
class ExamplePair:
    """One example in both runs.

    Attributes:
        id: of the example.
        first: the measure in the first run.
        second: the measure in the second run.
    """

    id: str
    first: float
    second: float

    @property
    def change(self) -> float:
        """The second minus the first."""
        return self.second - self.first


@dataclasses.dataclass(frozen=True)
class Diff:
    """Two runs side by side.

    Attributes:
        names: of their methods.
        tasks: of their tasks.
        fields: in which they differ.
        measure: in which they are compared.
        comparison: the second minus the first with its test; None without a common example or measure.
        examples: those that moved by more than the rounding of float32, most first.
        shared: number of common examples.
        largest: change of an example, whatever its sign; 0 without a common example.
    """

    names: tuple[str, str]
    tasks: tuple[str, str]
    fields: list[Field]
    measure: Measure
    comparison: Comparison | None
    examples: list[ExamplePair]
    shared: int
    largest: float

    @property
    def flipped(self) -> tuple[list[str], list[str]]:
        """Examples that are right in the first run only, and in the second only; none for other measures."""
        if not self.measure.bounded:
            return [], []
        lost = [example.id for example in self.examples if (example.first, example.second) == (1.0, 0.0)]
        gained = [example.id for example in self.examples if (example.first, example.second) == (0.0, 1.0)]
        return lost, gained

    def as_json(self) -> dict[str, Any]:
        """The whole of it as one JSON object."""
        both = self.comparison
        lost, gained = self.flipped
        return {
            "methods": self.names,
            "tasks": self.tasks,
            "fields": [dataclasses.asdict(field) for field in self.fields],
            "measure": dataclasses.asdict(self.measure),
            "difference": None if both is None else {**dataclasses.asdict(both.metric), "p": both.pvalue},
            "shared": self.shared,
            "largest": self.largest,
            "only_first_right": lost,
            "only_second_right": gained,
            "examples": [{**dataclasses.asdict(example), "change": example.change} for example in self.examples],
        }


def run_of(name: str, below: Path) -> Result:
    """The run in a folder, or with an id or the end of one, in another folder.

    Args:
        name: folder of the run, or its id.
        below: folder that is searched for the id.

    Raises:
        UserError: when there is no such run, or there are several.
    """
    folder = Path(name)
    if (folder / SUMMARY).is_file():
        return read_result(folder)
    if folder.is_dir():
        raise UserError(f"{short(name)} is no finished run: name a folder with {SUMMARY}, or the id of a run.")
    stored = {result.run_id: result for result in summaries(below)}
    fitting = [run_id for run_id in stored if run_id == name] or [run_id for run_id in stored if run_id.endswith(name)]
    if not fitting:
        raise unknown(f"run below {below}", name, stored)
    if len(fitting) > 1:
        raise UserError(f"{short(name)} names {len(fitting)} runs below {below}: write the whole id.")
    return stored[fitting[0]]


def diff(first: Result, second: Result) -> Diff:
    """Two runs side by side.

    Args:
        first: from `run_of`.
        second: from `run_of`.
    """
    parts_of = PartsOf()
    measure = first.measure
    same = measure.name == second.measure.name and _data(first) == _data(second)
    comparison = tested(measure, [second], [first], parts_of) if same else None
    of_both = parts_of(first), parts_of(second)
    shared = [example for example in of_both[0] if example in of_both[1]] if same else []
    pairs = [ExamplePair(name, *(_value(measure, run[name]) for run in of_both)) for name in shared]
    pairs.sort(key=lambda pair: -abs(pair.change))
    return Diff(
        (named(first), named(second)),
        (labels.of_result(first), labels.of_result(second)),
        list(_fields(first, second)),
        measure,
        comparison,
        [pair for pair in pairs if abs(pair.change) > ROUNDING],
        len(shared),
        abs(pairs[0].change) if pairs else 0.0,
    )


def _data(result: Result) -> tuple[str, str]:
    """What two runs have in common whose examples may be the same."""
    return result.task, result.data.sha256


def _fields(first: Result, second: Result) -> Iterator[Field]:
    settings = {name: None for run in (first, second) for name in run.method_config}
    if first.method != second.method:
        yield Field("settings", "method", first.method, second.method)
    for name in settings:
        left, right = (_shown(run.method_config.get(name, MISSING)) for run in (first, second))
        if left != right:
            yield Field("settings", name, left, right)
    flat = [{**run.as_json(), "identity": _identity(run)} for run in (first, second)]
    for kind, names in FIELDS.items():
        for name in names:
            left, right = (_shown(_at(run, name), digest="sha" in name or "source" in name) for run in flat)
            if left != right:
                yield Field(kind, name.split(".")[-1], left, right)
    # Each of two methods has its modules; those that both have must be equal.
    of_both = [run.provenance.code or {} for run in (first, second)]
    for module in sorted(of_both[0].keys() & of_both[1].keys()):
        left, right = (code[module] for code in of_both)
        if left != right:
            yield Field("module", module, left, right)


def _identity(result: Result) -> dict[str, JsonValue]:
    """The identity of a run in its manifest, with files by their content alone; empty without a manifest."""
    manifest = None if result.folder is None else read_manifest(result.folder)
    if manifest is None:
        return {}
    digests = manifest.identity.get("method_files")
    content = sorted(str(sha256)[:DIGEST] for sha256 in digests.values()) if isinstance(digests, dict) else []
    return {**manifest.identity, "method_files": " ".join(content) or None}


def _at(run: Mapping[str, JsonValue], name: str) -> JsonValue:
    value: JsonValue = dict(run)
    for key in name.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _shown(value: JsonValue, *, digest: bool = False) -> str:
    if value is None:
        return MISSING
    text = value if isinstance(value, str) else json.dumps(value)
    return text[:DIGEST] if digest else text


def _value(measure: Measure, stored: Parts) -> float:
    """The measure of one example; where it has several parts, the mean over its strata."""
    return mean_of(stored.get(measure.name, stored[QUALITY]))
