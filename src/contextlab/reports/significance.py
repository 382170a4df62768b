"""Which differences between methods are real: paired tests, corrected for their number, and the marks that follow."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from contextlab.benchmarks.metrics.estimates import Comparison, holm, share_of_full
from contextlab.benchmarks.task import Measure, Metric, Part
from contextlab.harness.comparison import compare
from contextlab.harness.stored import Parts, Result
from contextlab.reports.captions import ALPHA
from contextlab.reports.cells import Mark
from contextlab.reports.stored import parts_of

NATS = "nats_per_token"
Runs = Sequence[Result]
"""The results of one method with equal dimensions: one for every seed."""


class PartsOf:
    """Reads the parts of a result's examples when they are needed, once."""

    def __init__(self) -> None:
        self._read: dict[Path, Mapping[str, Parts]] = {}

    def __call__(self, result: Result) -> Mapping[str, Parts]:
        """As `stored.parts_of`."""
        if result.parts is not None or result.folder is None:
            return parts_of(result)
        if result.folder not in self._read:
            self._read[result.folder] = parts_of(result)
        return self._read[result.folder]


def tested_as(result: Result, metric: str) -> Measure | None:
    """How a metric is compared between runs: as the task's measure, or as nats; None where it cannot be."""
    if metric == result.measure.name:
        return result.measure
    return Measure(NATS, higher_is_better=False) if metric == NATS else None


def tested(measure: Measure, mine: Runs, other: Runs, parts_of: PartsOf) -> Comparison | None:
    """The paired difference of two methods with its test; None without common examples, or without their parts."""
    both = [[parts_of(run) for run in runs] for runs in (mine, other)]
    if measure.name != mine[0].measure.name and not all(
        measure.name in example for runs in both for run in runs for example in run.values()
    ):
        return None
    return compare(measure, *both)


def share(window: Result, method: Result, full: Result, parts_of: PartsOf) -> Metric | None:
    """The share of full attention's gain; None where it cannot be computed or has no meaning."""
    return share_of_full(*(_nats(parts_of(run)) for run in (window, method, full)))


def _nats(stored: Mapping[str, Parts]) -> dict[str, list[Part]]:
    return {example: of_example[NATS] for example, of_example in stored.items() if NATS in of_example}


def marks(values: Sequence[float], *, higher: bool, pvalue: Callable[[int, int], float | None]) -> dict[int, Mark]:
    """The methods that are best and second best, where tests say so.

    All pairs of methods are tested, because which method is the best is seen in the same data. The best is marked when
    it differs from every other method, the second best when it differs from every other and is not the best.

    Args:
        values: the metric of every method.
        higher: whether higher is better.
        pvalue: of the paired difference between two methods; None where there is no test.
    """
    pairs = list(itertools.combinations(range(len(values)), 2))
    pvalues = [pvalue(*pair) for pair in pairs]
    computed = [p for p in pvalues if p is not None]
    if not pairs or len(computed) < len(pvalues):
        return {}
    corrected = dict(zip(map(frozenset, pairs), holm(computed), strict=True))
    ranked = sorted(range(len(values)), key=lambda number: -values[number] if higher else values[number])
    first, second, rest = ranked[0], ranked[1], ranked[2:]

    def differs(first: int, others: Sequence[int]) -> bool:
        return all(corrected[frozenset((first, other))] < ALPHA for other in others)

    marked: dict[int, Mark] = {}
    if differs(first, [second, *rest]):
        marked[first] = "best"
    if rest and differs(second, [first, *rest]):
        marked[second] = "second"
    return marked
