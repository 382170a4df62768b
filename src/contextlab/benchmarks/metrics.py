"""Means with their 95 % intervals."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence

import numpy as np

from contextlab.benchmarks.task import Metric

Z_95 = 1.959963984540054


def wilson(successes: int, n: int) -> Metric:
    """A share of `n` trials with Wilson's score interval.

    Raises:
        ValueError: when `successes` is not within 0 .. n, or n is 0.
    """
    if not 0 <= successes <= n or n == 0:
        raise ValueError(f"{successes} of {n} is not a share")
    share, z2 = successes / n, Z_95**2
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = Z_95 / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return _metric(share, max(0.0, centre - half), min(1.0, centre + half), n)


def bootstrap_ratio(
    numerators: Sequence[float],
    denominators: Sequence[float],
    groups: Sequence[Hashable] | None = None,
    seed: int = 0,
    resamples: int = 2000,
) -> Metric:
    """Sum of numerators over sum of denominators, with a percentile bootstrap interval that contains the value.

    Examples of one group (a book, say) are drawn together; the result does not depend on the order of the examples.
    There is no interval for fewer than two groups.

    Raises:
        ValueError: when the lengths differ, there are no examples, or the denominators of a group do not sum to more
            than 0.
    """
    rows: dict[Hashable, list[tuple[float, float]]] = defaultdict(list)
    keys = range(len(numerators)) if groups is None else groups
    for key, numerator, denominator in zip(keys, numerators, denominators, strict=True):
        rows[key].append((numerator, denominator))
    sums = np.array(sorted((math.fsum(n for n, _ in row), math.fsum(d for _, d in row)) for row in rows.values()))
    if not len(sums) or (sums[:, 1] <= 0).any():
        raise ValueError("a ratio needs examples whose denominators are above 0")
    numerator, denominator = sums.sum(axis=0)
    value = float(numerator / denominator)
    if len(sums) < 2:
        return Metric(value, None, None, len(numerators))
    generator = np.random.default_rng(seed)
    drawn = np.array([sums[generator.integers(len(sums), size=len(sums))].sum(axis=0) for _ in range(resamples)])
    low, high = np.percentile(drawn[:, 0] / drawn[:, 1], [2.5, 97.5])
    return _metric(value, float(low), float(high), len(numerators))


def paired_difference(a: Sequence[float], b: Sequence[float]) -> Metric:
    """Mean of `a - b` over the same examples in the same order, with a bootstrap interval over the examples.

    Raises:
        ValueError: when the lengths differ or there are no examples.
    """
    differences = [x - y for x, y in zip(a, b, strict=True)]
    return bootstrap_ratio(differences, [1.0] * len(differences))


def share_of_full(window: float, method: float, full: float) -> float:
    """The part of full attention's gain over the window that a method reaches, all three in nats per token.

    Returns:
        1 for a method as good as full attention, 0 for one as good as the window; NaN when these two are equal.
    """
    return (window - method) / (window - full) if window != full else math.nan


def exponential(metric: Metric) -> Metric:
    """The perplexity of a metric in nats: value and bounds raised to e."""
    low, high = (None if bound is None else math.exp(bound) for bound in (metric.low, metric.high))
    return Metric(math.exp(metric.value), low, high, metric.n)


def _metric(value: float, low: float, high: float, n: int) -> Metric:
    """A metric whose bounds are moved, where rounding or skew asks for it, to contain the value."""
    return Metric(value, min(low, value), max(high, value), n)
