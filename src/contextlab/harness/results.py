"""Results of runs: one JSON object per run, and paired differences between runs."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from contextlab.benchmarks.examples import Example
from contextlab.benchmarks.metrics.estimates import Comparison, compared
from contextlab.benchmarks.task import Control, Dataset, Measure, Metric, Options, Protocol, Task
from contextlab.errors import UserError
from contextlab.harness import labels
from contextlab.harness.store import QUALITY, Parts
from contextlab.method import AnyMethod

if TYPE_CHECKING:
    import pandas

PHASES = ("train", "contextualize", "query")
FEW = 4
"""The least number of examples for which a spread of seconds is reported."""


@dataclasses.dataclass(frozen=True)
class Case:
    """One task under one control, with the same examples for every method."""

    name: str
    task: Task
    split: str
    options: Options
    dataset: Dataset
    protocol: Protocol
    limit: int | None

    @property
    def label(self) -> str:
        """The task's label in tables."""
        return labels.of_task(self.name, self.split, {"history": self.options.history, "tokens": self.options.tokens})

    @property
    def selected(self) -> Sequence[Example]:
        """The examples that are run."""
        return self.dataset.examples[: self.limit]

    def check(self) -> None:
        """Refuse a data set that cannot be run.

        Raises:
            UserError: when it is empty, two examples share an id, one is no `Example`, or the wrong context needs a
                second work.
        """
        if not all(isinstance(example, Example) for example in self.dataset.examples):
            raise UserError(f"{self.name} {self.split} holds examples without id or work: give every example both.")
        ids = [example.id for example in self.dataset.examples]
        if not ids:
            raise UserError(f"{self.name} {self.split} holds no examples: choose another split or data folder.")
        if len(set(ids)) < len(ids):
            twice = next(i for i in ids if ids.count(i) > 1)
            raise UserError(f"{self.name} {self.split} holds two examples '{twice}': give every example its own id.")
        if self.options.context == "wrong" and len({example.work for example in self.dataset.examples}) == 1:
            raise UserError(f"{self.name} {self.split} holds a single work: run it without --context wrong.")

    def other(self, index: int) -> Example:
        """The next example of another work; the example itself when there is no other work."""
        examples: Sequence[Example] = self.dataset.examples
        own = examples[index]
        later = (*examples[index + 1 :], *examples[:index])
        return next((example for example in later if example.work != own.work), own)


@dataclasses.dataclass(frozen=True)
class Peaks:
    """The highest peak memory of stored examples.

    Attributes:
        phases: in bytes, by phase; on a GPU they are stored in the lines instead.
        examples: number of stored lines, the first ones, that they cover.
    """

    phases: Mapping[str, int]
    examples: int

    @classmethod
    def of(cls, stored: Mapping[str, Any] | None) -> Peaks:
        """The peaks of a summary; empty without a summary, or for one of a version that did not store them."""
        if stored is None or "measured" not in stored:
            return cls({}, 0)
        costs = {phase: cost for phase, cost in stored["cost"].items() if cost is not None}
        return cls({phase: cost["peak_bytes"] for phase, cost in costs.items()}, stored["measured"])

    def with_measured(self, phases: Mapping[str, int], examples: int) -> Peaks:
        """The maximum of these and the measured peaks, for the first `examples` lines."""
        both = {phase: max(self.phases.get(phase) or 0, phases.get(phase, 0)) for phase in {**self.phases, **phases}}
        return Peaks(both, examples)


@dataclasses.dataclass(frozen=True)
class Difference:
    """The difference between a metric of one run and that of another, over the same examples.

    Attributes:
        label: the two runs, as `longmem, own - wrong` or `longmem - window`.
        task: its label in tables, with split and settings.
        measure: the metric that is compared.
        higher_is_better: None where this is unknown.
        metric: the difference of the two runs' metrics.
    """

    label: str
    task: str
    measure: str
    higher_is_better: bool | None
    metric: Metric

    @property
    def between_contexts(self) -> bool:
        """Whether both runs are of one method, with its own and another context."""
        return self.label.endswith((", own - none", ", own - wrong"))


@dataclasses.dataclass(frozen=True)
class Results:
    """The results of `bench`.

    Attributes:
        runs: one JSON object per run, in the order of the runs.
        differences: the paired differences.
        parts: for every run, the parts of its examples in the metrics, by their ids; used for shares.
    """

    runs: list[dict[str, Any]]
    differences: list[Difference]
    parts: list[dict[str, Parts]]

    def to_pandas(self) -> pandas.DataFrame:
        """One row per run; nested fields have dotted names."""
        import pandas

        return pandas.json_normalize(self.runs)


def description(name: str, method: AnyMethod, case: Case) -> dict[str, Any]:
    """The fields that describe a run: method, task, split, context, backbone and data."""
    backbone = method.backbone
    return {
        "method": name,
        "method_config": method.config.as_dict(),
        "changed": changed_settings(method),
        "task": case.name,
        "split": case.split,
        "context": case.options.context,
        "history": case.options.history,
        "tokens": case.options.tokens,
        "backbone": backbone.name,
        "data": {
            "source": case.dataset.source,
            "sha256": case.dataset.sha256,
            "examples": len(case.selected),
            "note": case.dataset.note,
        },
        "parameters": {
            "backbone": sum(parameter.numel() for parameter in backbone.model.parameters()),
            "added": method.added_parameters,
            "trained": method.trained_parameters,
        },
        "max_context": method.capabilities.max_context,
        "own_window": backbone.own_window,
        "untrained": method.untrained,
        "twin": method.twin if method.card is not None else None,
    }


def changed_settings(method: AnyMethod) -> list[str]:
    """Names of the settings that differ from the method's defaults."""
    return list(method.config.changed())


def summary(case: Case, lines: Sequence[dict[str, Any]], peaks: Peaks) -> dict[str, Any]:
    """Metrics, cost and state over the stored lines of finished examples."""
    metrics = case.protocol.summarise([line["record"] for line in lines])
    costs = {phase: [line["cost"][phase] for line in lines if phase in line["cost"]] for phase in PHASES}
    measure = case.protocol.measure or Measure(next(iter(metrics)))
    return {
        "measure": dataclasses.asdict(measure),
        "metrics": {name: dataclasses.asdict(metric) for name, metric in metrics.items()},
        "cost": {phase: _cost(costs[phase], peaks.phases.get(phase)) for phase in PHASES},
        "measured": peaks.examples,
        "state": _means([line["state"] for line in lines if line["state"] is not None]),
    }


def training_cost(method: AnyMethod) -> dict[str, Any] | None:
    """What the weights of a method cost once; None where it has none, or they came without a card."""
    return None if method.card is None else method.card.cost.model_dump()


def largest_bytes(line: Mapping[str, Any], phase: str) -> int:
    """Bytes of the largest call of an example, from its line; 0 where they are not stored."""
    return int(line["cost"].get(phase, {}).get("largest_bytes", 0))


def recounted(line: Mapping[str, Any], watched: Mapping[str, Any]) -> dict[str, Any]:
    """A line with the FLOPs that were counted in a second run of its example."""
    cost = {phase: {**cost, "flops": watched["cost"][phase]["flops"]} for phase, cost in line["cost"].items()}
    return {**line, "cost": cost}


def _cost(costs: Sequence[dict[str, Any]], peak: int | None) -> dict[str, Any] | None:
    """Means of FLOPs, tokens and energy, the highest peak, and the median and the spread of the seconds.

    The spread is the interquartile range of the seconds per FLOP (per token, where FLOPs were not counted) divided by
    their median. Examples differ in size, but seconds per FLOP differ only when other programs are running.
    """
    if not costs:
        return None
    seconds = [cost["seconds"] for cost in costs]
    counted = all(cost["flops"] is not None for cost in costs)
    work = [cost["flops"] if counted else cost["tokens"] for cost in costs]
    speeds = [s / w for s, w in zip(seconds, work, strict=True) if w]
    peaks = [cost["peak_bytes"] for cost in costs if cost["peak_bytes"] is not None]
    joules = [cost["joules"] for cost in costs if cost.get("joules") is not None]
    return {
        "flops": round(sum(work) / len(costs)) if counted else None,
        "flops_formula": _mean([cost.get("flops_formula") for cost in costs]),
        "peak_bytes": peak if peak is not None else max(peaks, default=None),
        "seconds": statistics.median(seconds),
        "seconds_spread": _spread(speeds) if len(speeds) >= FEW else None,
        "tokens": round(sum(cost["tokens"] for cost in costs) / len(costs)),
        **({"joules": statistics.fmean(joules)} if len(joules) == len(costs) else {}),
    }


def _spread(values: Sequence[float]) -> float:
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / middle if middle else 0.0


def _means(counts: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Means of all counts; examples of earlier versions have no `bytes_formula`."""
    return {key: _mean([count.get(key) for count in counts]) for key in counts[0]} if counts else None


def _mean(counts: Sequence[int | None]) -> int | None:
    """The mean, rounded; None where a count is missing."""
    known = [count for count in counts if count is not None]
    return round(sum(known) / len(known)) if known and len(known) == len(counts) else None


def measure_of(result: Mapping[str, Any]) -> Measure:
    """The measure of a stored result; its first metric, of unknown direction, where the result names none."""
    return Measure(**result["measure"]) if "measure" in result else Measure(next(iter(result["metrics"])))


def difference(measure: Measure, mine: Mapping[str, Parts], other: Mapping[str, Parts]) -> Metric | None:
    """A metric of one run minus that of another, as in `compare`; None without common examples."""
    both = compare(measure, [mine], [other])
    return both.metric if both is not None else None


def compare(
    measure: Measure, mine: Sequence[Mapping[str, Parts]], other: Sequence[Mapping[str, Parts]]
) -> Comparison | None:
    """A metric of one method minus that of another, with a test, over the examples that all runs have.

    Where an example lacks the parts of the measure, as in runs of earlier versions, the means of the examples'
    qualities are compared.

    Args:
        measure: the metric.
        mine: the parts of a method's examples, for every seed.
        other: those of the other method.

    Returns:
        None without common examples.
    """
    runs = [*mine, *other]
    shared = [example for example in mine[0] if all(example in run for run in runs)]
    whole = all(measure.name in run[example] for run in runs for example in shared)
    used = measure if whole else Measure(QUALITY)
    one, two = (
        [{example: run[example][used.name] for example in shared} for run in of_method] for of_method in (mine, other)
    )
    return compared(used, one, two)


def differences(
    parts: Mapping[tuple[str, str, Control], Mapping[str, Parts]], measures: Mapping[str, Measure]
) -> Iterable[Difference]:
    """Paired differences: between every method's own context and its controls, and between it and the first method.

    Args:
        parts: parts of every example by its id, for each method, task and control, with the first method first.
        measures: by task, the metric that is compared.
    """
    first = next(iter(parts))[0] if parts else ""
    for (method, task, control), own in parts.items():
        if control != "own":
            continue
        controls: tuple[Control, ...] = ("none", "wrong")
        others = {f"{method}, own - {name}": (method, task, name) for name in controls}
        if method != first:
            others[f"{method} - {first}"] = (first, task, control)
        for label, key in others.items():
            measure = measures[task]
            metric = difference(measure, own, parts.get(key, {}))
            if metric is not None:
                yield Difference(label, task, measure.name, measure.higher_is_better, metric)
