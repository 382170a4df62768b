"""The results of a benchmark, and paired differences between its runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from contextlab.benchmarks.metrics.estimates import Comparison, compared
from contextlab.benchmarks.task import Control, Measure, Metric, Part
from contextlab.harness import labels
from contextlab.harness.stored import (
    QUALITY,
    Parts,
    Result,
)

if TYPE_CHECKING:
    import pandas


RunKey = tuple[str, str, Control]
"""Labels of the method and task of a run, and its control."""


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


@dataclasses.dataclass(frozen=True, repr=False)
class Results:
    """The results of `bench`.

    Attributes:
        runs: the results, each with the parts of its examples, in the order of the runs.
        differences: the paired differences.
        notes: a sentence on every method that stands for the weights that are recommended for it.
    """

    runs: list[Result]
    differences: list[Difference]
    notes: list[str] = dataclasses.field(default_factory=list)

    def __repr__(self) -> str:
        lines = [f"{name}: {measure} {value:.3f}, n = {n}" for name, measure, value, n in map(_short, self.runs)]
        return "\n".join([f"{len(self.runs)} runs", *lines])

    def _repr_html_(self) -> str:
        import pandas

        columns = ("run", "measure", "value", "n")
        return str(pandas.DataFrame(map(_short, self.runs), columns=columns).to_html(index=False))

    def to_pandas(self) -> pandas.DataFrame:
        """One row per run, its `label` first; nested fields have dotted names."""
        import pandas

        frame = pandas.json_normalize([run.as_json() for run in self.runs])
        frame.insert(0, "label", [labels.whole(run) for run in self.runs])
        return frame

    @property
    def examples(self) -> pandas.DataFrame:
        """One row per example of every run, with the metrics that runs are compared in; skipped ones have none."""
        import pandas

        rows = [
            {
                "run": run.run_id,
                "label": labels.whole(run),
                "task": labels.of_result(run),
                "context": run.context,
                "id": id_,
            }
            | {name: mean_of(parts) for name, parts in of_example.items()}
            for run in self.runs
            for id_, of_example in (run.parts or {}).items()
        ]
        return pandas.DataFrame(rows, columns=None if rows else ["run", "label", "task", "context", "id", QUALITY])


def _short(run: Result) -> tuple[str, str, float, int]:
    """The label of a run, and its measure with value and number of examples."""
    metric = run.metrics[run.measure.name]
    return f"{labels.whole(run)} on {labels.of_result(run)} ({run.context})", run.measure.name, metric.value, metric.n


def mean_of(parts: Sequence[Part]) -> float:
    """The metric of one example; where it has several parts, the mean over their strata."""
    strata: dict[str, list[Part]] = {}
    for part in parts:
        strata.setdefault(part.stratum, []).append(part)
    ratios = [sum(p.numerator for p in of_one) / sum(p.denominator for p in of_one) for of_one in strata.values()]
    return sum(ratios) / len(ratios)


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
    of_mine, of_other = (
        [{example: run[example][used.name] for example in shared} for run in of_method] for of_method in (mine, other)
    )
    return compared(used, of_mine, of_other)


def differences(runs: Mapping[RunKey, Result]) -> Iterable[Difference]:
    """Paired differences: between every method's own context and its controls, and between it and the first method.

    Args:
        runs: the results with the parts of their examples, those of the first method first; the first result of a task
            says which metric is compared.
    """
    first = next(iter(runs))[0] if runs else ""
    measures: dict[str, Measure] = {}
    for (_, task, _), result in runs.items():
        measures.setdefault(task, result.measure)
    for (method, task, control), own in runs.items():
        if control != "own":
            continue
        controls: tuple[Control, ...] = ("none", "wrong")
        others: dict[str, RunKey] = {f"{method}, own - {name}": (method, task, name) for name in controls}
        if method != first:
            others[f"{method} - {first}"] = (first, task, control)
        for label, key in others.items():
            measure = measures[task]
            metric = difference(measure, own.parts or {}, runs[key].parts or {}) if key in runs else None
            if metric is not None:
                yield Difference(label, task, measure.name, measure.higher_is_better, metric)
