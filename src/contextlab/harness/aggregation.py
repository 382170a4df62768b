"""The result of a run: means over its finished examples."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Mapping, Sequence

import pydantic

from contextlab.benchmarks.task import Measure, Protocol
from contextlab.errors import UserError
from contextlab.harness.case import TaskCase
from contextlab.harness.selection import BuiltMethod
from contextlab.harness.stored import (
    PHASES,
    CallCost,
    Costs,
    Data,
    ExampleLine,
    Parameters,
    Phase,
    PhaseCost,
    Provenance,
    Result,
    StateSize,
    plain,
)
from contextlab.method import AnyMethod
from contextlab.seals import first_fault

FEW = 4
"""The least number of examples for which a spread of seconds is reported."""


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


def result_of(
    run_id: str,
    built_method: BuiltMethod,
    case: TaskCase,
    lines: Sequence[ExampleLine],
    peaks: Peaks,
    about: Provenance,
) -> Result:
    """The result of a run.

    Args:
        run_id: its id.
        built_method: the method with its label.
        case: the task.
        lines: the finished examples.
        peaks: of the stored examples.
        about: versions, machine and time.

    Raises:
        UserError: when the task gives metrics that cannot be stored.
    """
    method, weights = built_method.method, built_method.weights
    what = f"{built_method.label} on {case.name}"
    try:
        metrics = case.metrics(lines)
        return Result(
            run_id=run_id,
            method=built_method.name,
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
            data=_data_of(case.data, lines),
            parameters=_parameters(method),
            max_context=method.capabilities.max_context,
            own_window=method.backbone.own_window,
            untrained=method.untrained,
            twin=method.twin if method.card is not None else None,
            measure=case.protocol.measure or Measure(next(iter(metrics), "")),
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


def summarised(result: Result, protocol: Protocol, lines: Sequence[ExampleLine], peaks: Peaks) -> Result:
    """The result of a run over other finished examples of it.

    Args:
        result: of some of its examples.
        protocol: of its task.
        lines: the finished examples, in the order of the data.
        peaks: of the stored examples.

    Raises:
        UserError: when the task gives metrics that cannot be stored.
    """
    metrics = protocol.summarise([line.record for line in lines])
    fields: dict[str, object] = {
        "data": _data_of(result.data, lines),
        "measure": protocol.measure or Measure(next(iter(metrics))),
        "metrics": metrics,
        "cost": costs(lines, peaks).model_copy(update={"train": result.cost.train}),
        "measured": peaks.examples,
        "state": mean_size(lines),
    }
    return result.model_copy(update=fields)


def training_cost(method: AnyMethod) -> PhaseCost | None:
    """The cost of training the weights of a method; None without weights, or where their card is missing."""
    if method.card is None:
        return None
    cost = method.card.cost
    return PhaseCost(flops=cost.flops, peak_bytes=cost.peak_bytes, seconds=cost.seconds, tokens=cost.tokens)


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


def largest_batch(lines: Iterable[ExampleLine], results: Iterable[Result]) -> int | None:
    """Examples of the largest batch of these lines, and of results whose lines do not say it; None without a batch."""
    sizes = (*(line.batch for line in lines), *(result.provenance.batch for result in results))
    return max(filter(None, sizes), default=None)


def recounted(line: ExampleLine, watched: ExampleLine) -> ExampleLine:
    """A line with the FLOPs that were counted in a second run of its example."""
    cost = {phase: cost.model_copy(update={"flops": watched.cost[phase].flops}) for phase, cost in line.cost.items()}
    return line.model_copy(update={"cost": cost, "recounted": True})


def costs(lines: Sequence[ExampleLine], peaks: Peaks) -> Costs:
    """The costs of an example, over finished ones."""
    of_phases = {phase: [line.cost[phase] for line in lines if phase in line.cost] for phase in PHASES}
    return Costs(**{phase: _cost(every, peaks.phases.get(phase)) for phase, every in of_phases.items()})


def mean_size(lines: Sequence[ExampleLine]) -> StateSize | None:
    """Means of the sizes of states; None where no example has one."""
    sizes = [line.state for line in lines if line.state is not None]
    if not sizes:
        return None
    return StateSize(
        bytes=_whole_mean([size.bytes for size in sizes]),
        bytes_formula=_mean([size.bytes_formula for size in sizes]),
        floats=_whole_mean([size.floats for size in sizes]),
        tokens=_whole_mean([size.tokens for size in sizes]),
        cached=_mean([size.cached for size in sizes]),
    )


def _data_of(data: Data, lines: Sequence[ExampleLine]) -> Data:
    """The data of a run with the numbers of its finished examples."""
    skipped = sum(line.quality is None for line in lines)
    return data.model_copy(update={"examples": len(lines), "skipped": skipped})


def _parameters(method: AnyMethod) -> Parameters:
    return Parameters(
        backbone=sum(parameter.numel() for parameter in method.backbone.model.parameters()),
        added=method.added_parameters,
        trained=method.trained_parameters,
    )


def _cost(every: Sequence[CallCost], peak: int | None) -> PhaseCost | None:
    """Means of FLOPs, tokens and energy, the highest peak, and the median and the spread of the seconds.

    A peak that is measured for all examples together is unknown where some were not counted, and so not measured.
    The spread is the interquartile range of the seconds per FLOP (per token, where FLOPs were not counted) divided by
    their median. Examples differ in size, but seconds per FLOP differ only when other programs are running.
    """
    if not every:
        return None
    flops, tokens = _mean([cost.flops for cost in every]), [cost.tokens for cost in every]
    work = tokens if flops is None else [cost.flops or 0 for cost in every]
    speeds = [cost.seconds / done for cost, done in zip(every, work, strict=True) if done]
    peaks = [cost.peak_bytes for cost in every if cost.peak_bytes is not None]
    if peak is not None and any(cost.flops is None for cost in every):
        peak = None
    joules = [cost.joules for cost in every if cost.joules is not None]
    return PhaseCost(
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
    present = [count for count in counts if count is not None]
    return _whole_mean(present) if len(present) == len(counts) else None


def _whole_mean(counts: Sequence[int]) -> int:
    return round(sum(counts) / len(counts))
