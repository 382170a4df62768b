"""Draws of metrics over their clusters, for intervals of numbers that have no formula of one.

A draw of Rubin's (1981) Bayesian bootstrap gives every cluster a weight from the exponential distribution of mean 1. In
the usual bootstrap, which draws clusters with repetition, a draw may lack a whole stratum, and then has no metric.

Legend: D draws, G clusters, S strata.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import numpy as np

from contextlab.benchmarks.metrics.intervals import Array
from contextlab.benchmarks.task import Part

DRAWS = 1000
SEED = 0
TAIL = 0.025
"""The share of the draws on each side of a 95 % interval."""


def draws(metrics: Sequence[Sequence[Part]], count: int = DRAWS, seed: int = SEED) -> Array:
    """Values of several metrics in draws of their clusters.

    A cluster has the same weight in all metrics of a draw, so that metrics of the same texts are paired.

    Args:
        metrics: the parts of each metric, at least one, in any order.
        count: number of draws.
        seed: of the weights.

    Returns:
        One row per draw, one column per metric.
    """
    names = {name: n for n, name in enumerate(sorted({part.cluster for parts in metrics for part in parts}))}
    generator = random.Random(seed)
    # Python keeps the numbers of `random` in all versions; they are below 1.
    uniform = np.fromiter((generator.random() for _ in range(count * len(names))), float)
    weights_DG = -np.log(1 - uniform).reshape(count, len(names))
    return np.stack([_drawn(parts, names, weights_DG) for parts in metrics], axis=1)


def _drawn(parts: Sequence[Part], names: dict[str, int], weights_DG: Array) -> Array:
    """The mean over strata of ratios of weighted sums, in every draw."""
    strata = {name: n for n, name in enumerate(sorted({part.stratum for part in parts}))}
    sums_GS2 = np.zeros((len(names), len(strata), 2))
    for numerator, denominator, cluster, stratum in parts:
        sums_GS2[names[cluster], strata[stratum]] += (numerator, denominator)
    drawn_DS2 = np.tensordot(weights_DG, sums_GS2, axes=1)
    mean_D: Array = (drawn_DS2[..., 0] / drawn_DS2[..., 1]).mean(-1)
    return mean_D


def central(values: Array) -> tuple[float, float]:
    """The least and the greatest of the values without the outer 2.5 % on each side."""
    ordered, outside = np.sort(values), math.floor(TAIL * len(values))
    return float(ordered[outside]), float(ordered[-1 - outside])
