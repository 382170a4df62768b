"""95 % intervals for few clusters, and p-values from them: of means, proportions, paired differences and ratios.

Every metric is a mean over strata of ratios of sums. Observations that depend on each other (the questions about one
text, the chapters of one book) form a cluster. Clusters are independent, and intervals count clusters, not
observations. The variance is estimated by leaving out each cluster in turn (the jackknife), and quantiles are those of
Student's t. docs/statistics.md holds the simulated coverage.

Legend: G clusters, S strata.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from scipy import special

from contextlab.benchmarks.task import Part

Array = np.ndarray[Any, Any]
Bounds = tuple[float, float] | None

NO_RATIO = "a ratio needs examples whose denominators are above 0"
# Below this skewness the correction is smaller than rounding errors.
STRAIGHT = 1e-4
# Its cube is a number.
LARGEST = 1e100
# The skewness of few numbers is uncertain, so a bound is moved by at most half of the t interval's half-width.
FARTHEST = 1.5


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A number and its jackknife changes.

    Attributes:
        value: the number over all clusters.
        changes_G: the value minus the value without the cluster.
        weights_G: weights of the clusters; their sum is 1.
        size: effective number of observations.
        levels: further independent sources of variance (seeds), each with its degrees of freedom.
    """

    value: float
    changes_G: Array
    weights_G: Array
    size: float
    levels: tuple[tuple[float, float], ...] = ()

    def __sub__(self, other: Estimate) -> Estimate:
        """The difference of two numbers over the same clusters in the same order."""
        return dataclasses.replace(self, value=self.value - other.value, changes_G=self.changes_G - other.changes_G)

    @property
    def clusters(self) -> float:
        """The effective number of clusters (Kish)."""
        return float(1 / (self.weights_G**2).sum())

    @property
    def variance(self) -> float:
        """The jackknife variance over the clusters, around the value, and the variances of further levels."""
        return covariance(self, self) + sum(variance for variance, _ in self.levels)

    @property
    def degrees(self) -> float:
        """Degrees of freedom: the effective clusters minus one, at least one; with further levels Satterthwaite's."""
        over_clusters = max(self.clusters - 1, 1.0)
        if not any(variance for variance, _ in self.levels):
            return over_clusters
        levels = [(covariance(self, self), over_clusters), *self.levels]
        return self.variance**2 / sum(variance**2 / degrees for variance, degrees in levels)

    @property
    def quantile(self) -> float:
        """Student's t at 0.975."""
        return float(special.stdtrit(self.degrees, 0.975))

    def tail(self, t: float) -> float:
        """The two-sided p-value of a value that is `t` standard errors from 0."""
        return float(2 * special.stdtr(self.degrees, -abs(t)))


def covariance(a: Estimate, b: Estimate) -> float:
    """The jackknife covariance of two numbers over the same clusters."""
    count = len(a.changes_G)
    return float((count - 1) / count * (a.changes_G * b.changes_G).sum())


def jackknife(parts: Sequence[Part], clusters: Sequence[str] | None = None) -> Estimate:
    """The mean over strata of sums of numerators over sums of denominators.

    A stratum that is part of a single cluster is left out with it.

    Args:
        parts: of all observations, in any order.
        clusters: the order of the clusters; sorted by name when None.

    Raises:
        ValueError: when there are no parts, or the denominators of a stratum do not sum to more than 0.
    """
    names = {name: n for n, name in enumerate(clusters or sorted({part.cluster for part in parts}))}
    strata = {name: n for n, name in enumerate(sorted({part.stratum for part in parts}))}
    # Faster for the usual few parts than indexed addition of arrays.
    sums = [[[0.0, 0.0] for _ in strata] for _ in names]
    for numerator, denominator, cluster, stratum in parts:
        cell = sums[names[cluster]][strata[stratum]]
        cell[0] += numerator
        cell[1] += denominator
    sums_GS2 = np.array(sums).reshape(len(names), len(strata), 2)
    totals_S2 = sums_GS2.sum(0)
    if not len(totals_S2) or (totals_S2[:, 1] <= 0).any():
        raise ValueError(NO_RATIO)
    value = float(_mean_ratio(totals_S2))
    changes_G = value - _mean_ratio(totals_S2 - sums_GS2) if len(names) > 1 else np.zeros(1)
    shares_GS = sums_GS2[..., 1] / totals_S2[:, 1]
    size = float(len(strata) ** 2 / (1 / totals_S2[:, 1]).sum())
    return Estimate(value, changes_G, shares_GS.sum(1) / len(strata), size)


def mean_of_ratios(parts: Iterable[Part]) -> float:
    """The value of `jackknife`, alone.

    Raises:
        ValueError: when there are no parts, or the denominators of a stratum do not sum to more than 0.
    """
    sums: dict[str, list[float]] = {}
    for numerator, denominator, _, stratum in parts:
        cell = sums.setdefault(stratum, [0.0, 0.0])
        cell[0] += numerator
        cell[1] += denominator
    if not sums or any(denominator <= 0 for _, denominator in sums.values()):
        raise ValueError(NO_RATIO)
    return sum(numerator / denominator for numerator, denominator in sums.values()) / len(sums)


def _mean_ratio(sums_S2: Array) -> Array:
    """The mean over those strata of `(..., S, 2)` sums that have a denominator."""
    numerators_S, denominators_S = sums_S2[..., 0], sums_S2[..., 1]
    there_S = denominators_S > 0
    if there_S.all():
        ratios_S = numerators_S / denominators_S
        count: Any = sums_S2.shape[-2]
    else:
        ratios_S = np.where(there_S, numerators_S, 0) / np.where(there_S, denominators_S, 1)
        count = np.maximum(there_S.sum(-1), 1)
    mean: Array = ratios_S.sum(-1) / count
    return mean


def mean_interval(estimate: Estimate) -> Bounds:
    """Student's t interval, extended to the one corrected for skewness (Hall 1992); None for one cluster.

    For equal clusters without skewness it is the textbook's t interval over the clusters. A bound is at most one and a
    half times as far from the value as in that interval.
    """
    count = len(estimate.changes_G)
    if count < 2:
        return None
    value, quantile, error = estimate.value, estimate.quantile, math.sqrt(estimate.variance)
    skewness = _skewness(estimate.changes_G)
    below, above = (
        min(max(sign * _corrected(sign * quantile, skewness, count), quantile), FARTHEST * quantile) for sign in (1, -1)
    )
    return value - below * error, value + above * error


def mean_error(values: Sequence[float], clusters: Sequence[str]) -> float | None:
    """The standard error of the mean of `values`, whose clusters are independent; None for one cluster."""
    estimate = jackknife([Part(value, 1.0, cluster) for value, cluster in zip(values, clusters, strict=True)])
    return math.sqrt(estimate.variance) if len(estimate.changes_G) > 1 else None


def mean_pvalue(estimate: Estimate) -> float | None:
    """The two-sided p-value of the value 0; None for one cluster.

    It is 1 minus the level of the widest interval, made as in `mean_interval`, that does not hold 0. Without skewness
    it is that of the t test over the clusters.
    """
    if len(estimate.changes_G) < 2:
        return None
    error = math.sqrt(estimate.variance)
    if error == 0:
        return float(estimate.value == 0)
    t = estimate.value / error
    sign = math.copysign(1.0, t)
    uncorrected = sign * _uncorrected(t, _skewness(estimate.changes_G), len(estimate.changes_G))
    return estimate.tail(max(min(uncorrected, abs(t)), abs(t) / FARTHEST))


def _skewness(changes_G: Array) -> float:
    """Skewness with Fisher's correction for few clusters; 0 for fewer than three, or where all are equal."""
    count, largest = len(changes_G), float(np.abs(changes_G).max())
    if count < 3 or largest == 0:
        return 0.0
    scaled_G = changes_G / largest
    second, third = float((scaled_G**2).mean()), float((scaled_G**3).mean())
    return third / math.pow(second, 1.5) * math.sqrt(count * (count - 1)) / (count - 2)


def _corrected(t: float, skewness: float, count: int) -> float:
    """The quantile of the studentised mean: Hall's cubic transformation, inverted."""
    if abs(skewness) < STRAIGHT:
        return t
    root = math.sqrt(count)
    cubed = np.cbrt(1 + skewness * (t / root - skewness / (6 * count)))
    return root * 3 / skewness * (float(cubed) - 1)


def _uncorrected(t: float, skewness: float, count: int) -> float:
    """The inverse of `_corrected`."""
    if abs(skewness) < STRAIGHT:
        return t
    root = math.sqrt(count)
    # A difference that is nearly the same in all clusters has a t beyond all bounds.
    shift = min(max(skewness * t / (3 * root), -LARGEST), LARGEST)
    return root * (((1 + shift) ** 3 - 1) / skewness + skewness / (6 * count))


def proportion_interval(estimate: Estimate) -> Bounds:
    """Wilson's score interval with the t quantile over the effective number of trials; None for one cluster.

    For a mean of numbers between 0 and 1. When every observation is its own cluster, each is a trial.
    """
    if len(estimate.changes_G) < 2:
        return None
    value, quantile = min(max(estimate.value, 0.0), 1.0), estimate.quantile
    trials = _trials(estimate, value * (1 - value), 4 * value * (1 - value))
    centre = (value + quantile**2 / (2 * trials)) / (1 + quantile**2 / trials)
    spread = value * (1 - value) / trials + quantile**2 / (4 * trials**2)
    half = quantile / (1 + quantile**2 / trials) * math.sqrt(spread)
    return max(0.0, min(centre - half, value)), min(1.0, max(centre + half, value))


def change_interval(estimate: Estimate, square: float, differing: float) -> Bounds:
    """Bonett and Price's interval of a paired difference of proportions, with the t quantile; None for one cluster.

    Two pairs that differ in opposite directions are added, so that a few equal pairs do not have an interval of
    length 0. The number of pairs is the effective number of trials.

    Args:
        estimate: the difference of two means of numbers between 0 and 1.
        square: the mean square of the differences of the pairs.
        differing: the share of the pairs that differ.
    """
    if len(estimate.changes_G) < 2:
        return None
    centre, error = _with_two_pairs(estimate, square, differing)
    half = estimate.quantile * error
    return max(-1.0, min(centre - half, estimate.value)), min(1.0, max(centre + half, estimate.value))


def change_pvalue(estimate: Estimate, square: float, differing: float) -> float | None:
    """The two-sided p-value of the difference 0, from intervals as in `change_interval`; None for one cluster."""
    if len(estimate.changes_G) < 2:
        return None
    centre, error = _with_two_pairs(estimate, square, differing)
    return estimate.tail(centre / error)


def _with_two_pairs(estimate: Estimate, square: float, differing: float) -> tuple[float, float]:
    """The difference with two more pairs that differ in opposite directions, and its standard error."""
    share = 1.0 if differing > 0.5 else 4 * differing * (1 - differing)
    pairs = _trials(estimate, max(square - estimate.value**2, 0.0), share) + 2
    centre = estimate.value * (pairs - 2) / pairs
    return centre, math.sqrt(((square * (pairs - 2) + 2) / pairs - centre**2) / pairs)


def _trials(estimate: Estimate, spread: float, share: float) -> float:
    """The effective number of independent trials.

    It follows from the intra-class correlation. To estimate this, one cluster of equal observations is added to the
    clusters with information on it: where an outcome is rare, there are few of these, and the clusters in which it is
    frequent may not have been drawn.

    Args:
        estimate: the estimated mean.
        spread: variance of one trial.
        share: of the clusters with information on the correlation.
    """
    count, clusters, size = len(estimate.changes_G), estimate.clusters, max(estimate.size, estimate.clusters)
    variance = estimate.variance * (count - 1) / count
    correlation = 0.0
    if size > clusters and spread > 0:
        correlation = min(max((size * variance / spread - 1) / (size / clusters - 1), 0.0), 1.0)
    informed = share * clusters
    correlation = (informed * correlation + 1) / (informed + 1)
    trials = size / (1 + correlation * (size / clusters - 1))
    return min(trials, spread / variance) if variance > 0 < spread else trials


def ratio_interval(numerator: Estimate, denominator: Estimate) -> Bounds:
    """Fieller's interval of a ratio of two numbers over the same clusters, with the t quantile.

    None for one cluster, and where the interval of the denominator is not above 0, since the ratio has no meaning then.
    """
    bounds = mean_interval(denominator)
    if bounds is None or bounds[0] <= 0:
        return None
    t2 = denominator.quantile**2
    a = denominator.value**2 - t2 * denominator.variance
    b = numerator.value * denominator.value - t2 * covariance(numerator, denominator)
    c = numerator.value**2 - t2 * numerator.variance
    root = math.sqrt(max(b * b - a * c, 0.0))
    value = numerator.value / denominator.value
    return min((b - root) / a, value), max((b + root) / a, value)
