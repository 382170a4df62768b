"""The measured number beside a published one: a metric with its interval, or a cost."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

from contextlab.harness.comparison import difference
from contextlab.harness.stored import Phase, PhaseCost, Result
from contextlab.reports.costs import MOST_SPREAD
from contextlab.reports.papers.schema import ABSENT, number

MEBI = 2**20
PERCENT = "%"
POINTS = "points"
MANIFOLD = 10.0
"""From here on a ratio says more than percent."""


@dataclasses.dataclass(frozen=True)
class MeasuredValue:
    """A measured number with its 95 % interval, where it has one, in the unit of the published number."""

    value: float
    low: float | None = None
    high: float | None = None

    def text(self, unit: str) -> str:
        """The number as a cell of a table."""
        interval = (
            "" if self.low is None or self.high is None else f" [{_short(self.low, unit)}, {_short(self.high, unit)}]"
        )
        return _short(self.value, unit) + interval


def reading(result: Result, name: str, unit: str) -> MeasuredValue | None:
    """A metric, or one of `COSTS`, of a result; None where it was not measured.

    Args:
        result: as `bench` stores it.
        name: of the metric or cost.
        unit: of the published number; shares become percentages where it has a % sign.
    """
    if name in COSTS:
        value = COSTS[name](result)
        return None if value is None else MeasuredValue(value)
    metric = result.metrics.get(name)
    if metric is None:
        return None
    scale = 100.0 if PERCENT in unit else 1.0
    bounds = (None if end is None else scale * end for end in (metric.low, metric.high))
    return MeasuredValue(scale * metric.value, *bounds)


def change(value: float, baseline: float | None, unit: str) -> str:
    """The gain of a number over its baseline: points of a percentage, percent of others; empty without a baseline."""
    if baseline is None or (baseline == 0 and PERCENT not in unit):
        return ""
    if PERCENT in unit or unit == POINTS:
        return f"{value - baseline:+.1f}"
    ratio = value / baseline
    return f"{100 * (ratio - 1):+.1f} %" if ratio < MANIFOLD else f"{ratio:,.0f} x"


def printed_change(cell: str, baseline: str | None, unit: str) -> str:
    """The same of two printed cells."""
    value, other = number(cell), number(baseline or ABSENT)
    return "" if value is None else change(value, other, unit)


def gained(result: Result, baseline: Result, name: str, unit: str) -> str:
    """The gain of a result over a baseline's, with the 95 % interval of the paired difference where there is one.

    It is empty when the two were not measured on the same examples.
    """
    mine, other = reading(result, name, unit), reading(baseline, name, unit)
    if mine is None or other is None or _data(result) != _data(baseline):
        return ""
    text = change(mine.value, other.value, unit)
    interval = None if name in COSTS else _paired(result, baseline, name)
    return text if interval is None or not text else f"{text} [{interval[0]:+.1f}, {interval[1]:+.1f}]"


def _paired(result: Result, baseline: Result, name: str) -> tuple[float, float] | None:
    """The interval of the difference in percent or points, for a task's measure and for its perplexity."""
    measure = result.measure
    paired = difference(measure, result.parts or {}, baseline.parts or {})
    if paired is None or paired.low is None or paired.high is None:
        return None
    if measure.name == name:
        return 100 * paired.low, 100 * paired.high
    if (measure.name, name) == ("nats_per_token", "token_perplexity"):
        return 100 * math.expm1(paired.low), 100 * math.expm1(paired.high)
    return None


def _short(value: float, unit: str) -> str:
    if PERCENT in unit:
        return f"{value:.1f}"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e7 else f"{value:.4g}"


def _data(result: Result) -> tuple[str, int]:
    return result.data.sha256, result.data.examples


def _total(number: Callable[[PhaseCost], float | None], *phases: Phase) -> Callable[[Result], float | None]:
    """The sum over phases; None where one was not counted, or there is none."""

    def read(result: Result) -> float | None:
        costs = result.cost.phases()
        values = [number(cost) for phase, cost in costs.items() if not phases or phase in phases]
        counted = [value for value in values if value is not None]
        return float(sum(counted)) if counted and len(counted) == len(values) else None

    return read


def _scaled(read: Callable[[Result], float | None], scale: float) -> Callable[[Result], float | None]:
    def scaled(result: Result) -> float | None:
        value = read(result)
        return None if value is None else value / scale

    return scaled


def _seconds(cost: PhaseCost) -> float | None:
    """Seconds; None where they differ so much over the examples that another program was running."""
    return None if (cost.seconds_spread or 0) > MOST_SPREAD else cost.seconds


def _flops(cost: PhaseCost) -> int | None:
    return cost.flops


def _speed(result: Result) -> float | None:
    tokens, seconds = _total(lambda cost: cost.tokens)(result), _total(_seconds)(result)
    return tokens / seconds if tokens and seconds else None


def _peak(result: Result) -> float | None:
    peaks = [cost.peak_bytes for cost in result.cost.phases().values()]
    measured = [peak for peak in peaks if peak is not None]
    return max(measured) / MEBI if measured and len(measured) == len(peaks) else None


COSTS: dict[str, Callable[[Result], float | None]] = {
    "tokens per second": _speed,
    "seconds": _total(_seconds),
    "context seconds": _total(_seconds, "contextualize"),
    "query seconds": _total(_seconds, "query"),
    "flops": _total(_flops),
    "context TFLOPs": _scaled(_total(_flops, "contextualize"), 1e12),
    "query TFLOPs": _scaled(_total(_flops, "query"), 1e12),
    "peak MB": _peak,
    "state MB": lambda result: None if result.state is None else result.state.bytes / MEBI,
    "state M floats": lambda result: None if result.state is None else result.state.floats / MEBI,
}
"""Costs per example by name; MB are 2^20 bytes, M floats 2^20 floats, as in the papers."""
