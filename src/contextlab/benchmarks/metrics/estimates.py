"""Metrics with their 95 % intervals, and comparisons of two runs over the same examples."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Hashable, Mapping, Sequence

from contextlab.benchmarks.metrics import intervals
from contextlab.benchmarks.metrics.intervals import Bounds, Estimate, jackknife, mean_of_ratios
from contextlab.benchmarks.task import Measure, Metric, Part

Examples = Mapping[str, Sequence[Part]]
"""The parts of every example, by its id."""


def ratio(parts: Sequence[Part]) -> Metric:
    """A mean of any numbers, with a t interval over the clusters that is corrected for skewness.

    Raises:
        ValueError: when there are no parts, or the denominators of a stratum do not sum to more than 0.
    """
    estimate = jackknife(parts)
    return _metric(estimate, intervals.mean_interval(estimate), len(parts))


def proportion(parts: Sequence[Part], n: int | None = None) -> Metric:
    """A mean of numbers between 0 and 1, with Wilson's interval over the effective number of trials.

    Args:
        parts: of all observations.
        n: number of observations, where one observation has several parts.

    Raises:
        ValueError: when there are no parts, or the denominators of a stratum do not sum to more than 0.
    """
    estimate = jackknife(parts)
    return _metric(estimate, intervals.proportion_interval(estimate), len(parts) if n is None else n)


def f1_parts(answer: Hashable, prediction: Hashable, cluster: str, group: str = "") -> list[Part]:
    """The parts of one classified text in macro F1, the mean over classes of hits / ((answers + predictions) / 2).

    Args:
        answer: the right class.
        prediction: the predicted class.
        cluster: of the text.
        group: name of a set of classes; F1 is averaged over groups too.
    """
    if answer == prediction:
        return [Part(1.0, 1.0, cluster, f"{group}{answer}")]
    return [Part(0.0, 0.5, cluster, f"{group}{label}") for label in (answer, prediction)]


def macro_f1(answers: Sequence[int], predictions: Sequence[int], clusters: Sequence[str]) -> Metric:
    """The mean of the classes' F1; classes that are neither an answer nor a prediction are left out.

    Raises:
        ValueError: when the lengths differ or there are no examples.
    """
    texts = zip(answers, predictions, clusters, strict=True)
    return proportion([part for text in texts for part in f1_parts(*text)], len(answers))


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A paired difference of two runs, or of two methods with several seeds.

    Attributes:
        metric: the difference, with its interval.
        pvalue: two-sided p-value of no difference; None for a single cluster.
    """

    metric: Metric
    pvalue: float | None


def paired(measure: Measure, mine: Examples, other: Examples) -> Metric | None:
    """A metric of one run minus that of another, over the examples that both have; None without any.

    Observations have the same weights as in the metric (tokens, tasks, questions). The interval is a t interval over
    the clusters, for a bounded measure that of Bonett and Price.
    """
    both = compared(measure, [mine], [other])
    return both.metric if both is not None else None


def compared(measure: Measure, mine: Sequence[Examples], other: Sequence[Examples]) -> Comparison | None:
    """A metric of one method minus that of another, with a test, over the examples that all runs have.

    Each method has a run per seed. The variance between its seeds is added to that over the clusters, so that a
    difference counts only if it is large beside both. The p-value belongs to the intervals of `paired`.

    Args:
        measure: the metric.
        mine: the runs of one method.
        other: the runs of the other method.

    Returns:
        None without common examples.
    """
    shared = [example for example in mine[0] if all(example in run for run in (*mine, *other))]
    if not shared:
        return None
    both = _in_common_clusters([*mine, *other], shared)
    mine, other = both[: len(mine)], both[len(mine) :]
    a, b = (_over_seeds(runs, shared) for runs in (mine, other))
    left, right = _aligned([a, b], shared)
    levels = tuple(_between_seeds(runs, shared) for runs in (mine, other) if len(runs) > 1)
    difference = dataclasses.replace(left - right, levels=levels)
    if measure.bounded:
        changes = _changes(a, b, shared)
        bounds = intervals.change_interval(difference, *changes)
        pvalue = intervals.change_pvalue(difference, *changes)
    else:
        bounds, pvalue = intervals.mean_interval(difference), intervals.mean_pvalue(difference)
    return Comparison(_metric(difference, bounds, sum(len(mine[0][example]) for example in shared)), pvalue)


def holm(pvalues: Sequence[float]) -> list[float]:
    """P-values corrected for their number by Holm's step-down procedure, in the same order."""
    order = sorted(range(len(pvalues)), key=lambda number: pvalues[number])
    corrected = itertools.accumulate(
        (min(1.0, (len(order) - rank) * pvalues[number]) for rank, number in enumerate(order)), max
    )
    return [value for _, value in sorted(zip(order, corrected, strict=True))]


def _over_seeds(runs: Sequence[Examples], shared: Sequence[str]) -> Examples:
    """The parts of several runs as one, in which every seed has the same weight."""
    if len(runs) == 1:
        return runs[0]
    count = len(runs)
    return {
        example: [Part(part[0] / count, part[1] / count, part[2], part[3]) for run in runs for part in run[example]]
        for example in shared
    }


def _between_seeds(runs: Sequence[Examples], shared: Sequence[str]) -> tuple[float, float]:
    """The variance of a method's mean over its seeds, with its degrees of freedom."""
    values = [mean_of_ratios(itertools.chain.from_iterable(run[example] for example in shared)) for run in runs]
    mean = math.fsum(values) / len(values)
    degrees = len(values) - 1.0
    return math.fsum((value - mean) ** 2 for value in values) / degrees / len(values), degrees


def share_of_full(window: Examples, method: Examples, full: Examples) -> Metric | None:
    """The share of full attention's gain over the window that a method reaches, from nats per token.

    Returns:
        1 for a method as good as full attention and 0 for one as good as the window, with Fieller's interval over the
        clusters; None where the interval of the gain is not above 0.
    """
    shared = [example for example in method if example in window and example in full]
    if not shared:
        return None
    of_window, of_method, of_full = _aligned(_in_common_clusters([window, method, full], shared), shared)
    reached, gain = of_window - of_method, of_window - of_full
    bounds = intervals.ratio_interval(reached, gain)
    return bounds and Metric(reached.value / gain.value, *bounds, len(shared))


def exponential(metric: Metric) -> Metric:
    """The perplexity of a metric in nats: the exponential of the value and of both bounds."""
    low, high = (None if bound is None else _exp(bound) for bound in (metric.low, metric.high))
    return Metric(_exp(metric.value), low, high, metric.n)


def _exp(nats: float) -> float:
    # The upper bound for two documents may be too large for a floating-point number.
    return math.exp(min(nats, 700.0))


def _in_common_clusters(runs: Sequence[Examples], shared: Sequence[str]) -> Sequence[Examples]:
    """The runs with the finest clusters that hold whole clusters of every run.

    Texts that one run classifies after the same demonstrations, and another one without any, are independent in the
    second run alone.
    """
    if all([part.cluster for part in run[e]] == [part.cluster for part in runs[0][e]] for run in runs for e in shared):
        return runs
    joined: dict[str, str] = {}

    def common(cluster: str) -> str:
        while cluster in joined:
            cluster = joined[cluster]
        return cluster

    for example in shared:
        for parts in itertools.zip_longest(*(run[example] for run in runs)):
            first, *rest = dict.fromkeys(common(part.cluster) for part in parts if part is not None)
            joined |= dict.fromkeys(rest, first)
    return [
        {example: [part._replace(cluster=common(part.cluster)) for part in run[example]] for example in shared}
        for run in runs
    ]


def _aligned(runs: Sequence[Examples], shared: Sequence[str]) -> list[Estimate]:
    """The estimates of several runs over the same examples, with the clusters in the same order."""
    parts = [list(itertools.chain.from_iterable(run[example] for example in shared)) for run in runs]
    clusters = sorted({part.cluster for part in itertools.chain.from_iterable(parts)})
    return [jackknife(of_run, clusters) for of_run in parts]


def _changes(mine: Examples, other: Examples, shared: Sequence[str]) -> tuple[float, float]:
    """The mean square of the differences between two runs' observations, and the share of those that differ.

    Both are means over strata, as the metric is. An example whose observations differ between the runs counts as one.
    """
    squares, differing = list[Part](), list[Part]()
    for example in shared:
        a, b = mine[example], other[example]
        if [part[1:] for part in a] != [part[1:] for part in b]:
            a, b = ([_joined(side)] for side in (a, b))
        for p, q in zip(a, b, strict=True):
            change = p.numerator / p.denominator - q.numerator / q.denominator
            squares.append(p._replace(numerator=change**2 * p.denominator))
            differing.append(p._replace(numerator=bool(change) * p.denominator))
    return mean_of_ratios(squares), mean_of_ratios(differing)


def _joined(parts: Sequence[Part]) -> Part:
    """The observations of an example as one, in the stratum of the first."""
    numerator, denominator = (math.fsum(values) for values in zip(*(part[:2] for part in parts), strict=True))
    return parts[0]._replace(numerator=numerator, denominator=denominator)


def _metric(estimate: Estimate, bounds: Bounds, n: int) -> Metric:
    low, high = bounds or (None, None)
    return Metric(estimate.value, low, high, n)
