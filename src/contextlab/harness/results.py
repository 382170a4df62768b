"""Results of runs, and paired differences between runs."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import pydantic

from contextlab.benchmarks.examples import Example
from contextlab.benchmarks.metrics.estimates import Comparison, compared
from contextlab.benchmarks.task import Control, Dataset, Measure, Metric, Options, Part, Protocol, Task
from contextlab.errors import UserError
from contextlab.harness import labels
from contextlab.harness.stored import (
    PHASES,
    QUALITY,
    CallCost,
    Cost,
    Costs,
    Data,
    ExampleLine,
    Parameters,
    Parts,
    Phase,
    Provenance,
    Result,
    Size,
    plain,
)
from contextlab.method import AnyMethod
from contextlab.seals import first_fault

if TYPE_CHECKING:
    import pandas

    from contextlab.harness.built import BuiltMethod

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
    def data(self) -> Data:
        """What is stored about its data."""
        dataset = self.dataset
        return Data(source=dataset.source, sha256=dataset.sha256, examples=len(self.selected), note=dataset.note)

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
    def of(cls, stored: Result | None) -> Peaks:
        """The peaks of a result; empty without one."""
        if stored is None:
            return cls({}, 0)
        costs = stored.cost.phases()
        return cls(
            {phase: cost.peak_bytes for phase, cost in costs.items() if cost.peak_bytes is not None}, stored.measured
        )

    def with_measured(self, phases: Mapping[str, int], examples: int) -> Peaks:
        """The maximum of these and the measured peaks, for the first `examples` lines."""
        both = {phase: max(self.phases.get(phase, 0), phases.get(phase, 0)) for phase in {**self.phases, **phases}}
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
    """What a run is, and its measure."""
    metric = run.metrics[run.measure.name]
    return f"{labels.whole(run)} on {labels.of_result(run)} ({run.context})", run.measure.name, metric.value, metric.n


def mean_of(parts: Sequence[Part]) -> float:
    """The metric of one example; where it has several parts, the mean over their strata."""
    strata: dict[str, list[Part]] = {}
    for part in parts:
        strata.setdefault(part.stratum, []).append(part)
    ratios = [sum(p.numerator for p in of_one) / sum(p.denominator for p in of_one) for of_one in strata.values()]
    return sum(ratios) / len(ratios)


def result_of(
    run_id: str, one: BuiltMethod, case: Case, lines: Sequence[ExampleLine], peaks: Peaks, about: Provenance
) -> Result:
    """The result of a run.

    Args:
        run_id: its id.
        one: the method.
        case: the task.
        lines: the finished examples.
        peaks: of the stored examples.
        about: versions, machine and time.

    Raises:
        UserError: when the task gives metrics that cannot be stored.
    """
    method, weights = one.method, one.weights
    what = f"{one.label} on {case.name}"
    try:
        metrics = case.protocol.summarise([line.record for line in lines])
        return Result(
            run_id=run_id,
            method=one.name,
            method_config=plain(method.config.as_dict()),
            changed=list(method.config.changed()),
            method_weights=method.weights_digest,
            **({} if weights is None else weights.fields()),
            task=case.name,
            split=case.split,
            context=case.options.context,
            history=case.options.history,
            tokens=case.options.tokens,
            backbone=method.backbone.name,
            data=case.data,
            parameters=_parameters(method),
            max_context=method.capabilities.max_context,
            own_window=method.backbone.own_window,
            untrained=method.untrained,
            twin=method.twin if method.card is not None else None,
            measure=case.protocol.measure or Measure(next(iter(metrics))),
            metrics=metrics,
            cost=costs(lines, peaks).model_copy(update={"train": training_cost(method)}),
            measured=peaks.examples,
            state=mean_size(lines),
            provenance=about,
        )
    except pydantic.ValidationError as error:
        raise UserError(
            f"The result of {what} cannot be stored ({first_fault(error)}): correct the task or method."
        ) from error


def training_cost(method: AnyMethod) -> Cost | None:
    """What the weights of a method cost once; None where it has none, or they came without a card."""
    if method.card is None:
        return None
    cost = method.card.cost
    return Cost(flops=cost.flops, peak_bytes=cost.peak_bytes, seconds=cost.seconds, tokens=cost.tokens)


def largest_bytes(line: ExampleLine, phase: Phase) -> int:
    """Bytes of the largest call of an example; 0 where it has no such phase."""
    return line.cost[phase].largest_bytes if phase in line.cost else 0


def unmeasured(lines: Sequence[ExampleLine], measured: int) -> list[ExampleLine]:
    """Lines whose calls were counted, and whose peak memory neither they nor a result have.

    Args:
        lines: the stored ones.
        measured: number of lines, the first ones, that a result's peaks cover.
    """
    return [
        line
        for line in lines[measured:]
        if any(cost.flops is not None and cost.peak_bytes is None for cost in line.cost.values())
    ]


def recounted(line: ExampleLine, watched: ExampleLine) -> ExampleLine:
    """A line with the FLOPs that were counted in a second run of its example."""
    cost = {phase: cost.model_copy(update={"flops": watched.cost[phase].flops}) for phase, cost in line.cost.items()}
    return line.model_copy(update={"cost": cost, "recounted": True})


def costs(lines: Sequence[ExampleLine], peaks: Peaks) -> Costs:
    """The costs of an example, over finished ones."""
    of_phases = {phase: [line.cost[phase] for line in lines if phase in line.cost] for phase in PHASES}
    return Costs(**{phase: _cost(every, peaks.phases.get(phase)) for phase, every in of_phases.items()})


def mean_size(lines: Sequence[ExampleLine]) -> Size | None:
    """Means of the sizes of states; None where no example has one."""
    sizes = [line.state for line in lines if line.state is not None]
    if not sizes:
        return None
    return Size(
        bytes=_whole_mean([size.bytes for size in sizes]),
        bytes_formula=_mean([size.bytes_formula for size in sizes]),
        floats=_whole_mean([size.floats for size in sizes]),
        tokens=_whole_mean([size.tokens for size in sizes]),
        cached=_mean([size.cached for size in sizes]),
    )


def _parameters(method: AnyMethod) -> Parameters:
    return Parameters(
        backbone=sum(parameter.numel() for parameter in method.backbone.model.parameters()),
        added=method.added_parameters,
        trained=method.trained_parameters,
    )


def _cost(every: Sequence[CallCost], peak: int | None) -> Cost | None:
    """Means of FLOPs, tokens and energy, the highest peak, and the median and the spread of the seconds.

    The spread is the interquartile range of the seconds per FLOP (per token, where FLOPs were not counted) divided by
    their median. Examples differ in size, but seconds per FLOP differ only when other programs are running.
    """
    if not every:
        return None
    flops, tokens = _mean([cost.flops for cost in every]), [cost.tokens for cost in every]
    work = tokens if flops is None else [cost.flops or 0 for cost in every]
    speeds = [cost.seconds / done for cost, done in zip(every, work, strict=True) if done]
    peaks = [cost.peak_bytes for cost in every if cost.peak_bytes is not None]
    joules = [cost.joules for cost in every if cost.joules is not None]
    return Cost(
        flops=flops,
        flops_formula=_mean([cost.flops_formula for cost in every]),
        peak_bytes=peak if peak is not None else max(peaks, default=None),
        seconds=statistics.median(cost.seconds for cost in every),
        seconds_spread=_spread(speeds) if len(speeds) >= FEW else None,
        tokens=_whole_mean(tokens),
        joules=statistics.fmean(joules) if len(joules) == len(every) else None,
    )


def _spread(values: Sequence[float]) -> float:
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / middle if middle else 0.0


def _mean(counts: Sequence[int | None]) -> int | None:
    """The mean, rounded; None where a count is missing."""
    known = [count for count in counts if count is not None]
    return _whole_mean(known) if len(known) == len(counts) else None


def _whole_mean(counts: Sequence[int]) -> int:
    return round(sum(counts) / len(counts))


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
