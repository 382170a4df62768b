"""Baselines of equal bytes: for every method the best of those that a pattern names and that keep no more of a text."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from contextlab.benchmarks.metrics.estimates import holm
from contextlab.errors import UserError, short
from contextlab.reports.cells import Cell, Column
from contextlab.reports.dimensions import learned
from contextlab.reports.entries import TableRow, of_common_seeds
from contextlab.reports.filters import matching
from contextlab.reports.names import Names
from contextlab.reports.significance import PartsOf, tested, tested_as

WILDCARDS = frozenset("*?|")
MOST_MORE = 0.01
"""A baseline may have so many more bytes, as a share: counters in a state are no reason to leave a window out."""
LEAST = 1e-3
"""Smaller p-values are written as smaller than this."""


class EqualBytes:
    """For every row the best of the methods that a pattern names, among those of as many bytes or fewer.

    A row that has learned nothing from text is compared with methods that have learned nothing; one that has, with all.
    Rows that the pattern names are their own baselines.

    Args:
        of: the rows of a table.
        pattern: of methods' names, as in `filters.matching`.
        parts_of: reads the parts of a result's examples.
        names: for display.

    Raises:
        UserError: when the pattern names no row.
    """

    def __init__(self, of: Sequence[TableRow], pattern: str, parts_of: PartsOf, names: Names) -> None:
        fits = matching(pattern, [row.words["method"] for row in of], [row.first.method for row in of])
        baselines = [row for row, fitting in zip(of, fits, strict=True) if fitting]
        if not baselines:
            raise UserError(f"No method in these results fits {short(pattern)}: name one of the table's rows.")
        self.rows, self.pattern, self._parts_of, self._names = of, pattern, parts_of, names
        best = {id(row): _best_of_its_bytes(row, baselines) for row in of}
        self._baselines = best | {id(row): row for row in baselines}
        self._of_metric: dict[str, dict[int, float]] = {}

    def baseline(self, row: TableRow) -> TableRow | None:
        """What is subtracted from a row; None where no baseline keeps as little, or no metric says which is better."""
        return self._baselines[id(row)]

    def columns(self, row: TableRow, metric: str, group: str) -> Iterator[tuple[Column, Cell]]:
        """The p-value of a row's difference, corrected for the number of rows, and the name of its baseline."""
        baseline = self.baseline(row)
        if baseline is None or baseline is row:
            return
        if metric not in self._of_metric:
            self._of_metric[metric] = self._corrected(metric)
        pvalue, heading = self._of_metric[metric].get(id(row)), f"{metric} - {self.pattern}"
        if pvalue is not None:
            text = f"<{LEAST:g}" if pvalue < LEAST else f"{pvalue:.3f}"
            yield Column(group, f"{heading}: p", "text", "p"), Cell(pvalue, text=text)
        name = self._names.of("method", baseline.words["method"])
        yield Column(group, f"{heading}: which", "text", "which"), Cell(_quality(baseline), text=name)

    @property
    def legend(self) -> str:
        """What the columns show."""
        return (
            f"- {self.pattern}: beyond the best of these methods whose state has at most {MOST_MORE * 100:.0f} % more "
            "bytes, named under which; p: of this difference, corrected by Holm's procedure over the column"
        )

    def _corrected(self, metric: str) -> dict[int, float]:
        """The corrected p-values of all rows with a baseline of their own, by the identity of the row."""
        of_examples: dict[tuple[Any, ...], dict[int, float]] = defaultdict(dict)
        for row in self.rows:
            if (pvalue := self._pvalue(row, metric)) is not None:
                of_examples[row.examples][id(row)] = pvalue
        return {
            number: corrected
            for pvalues in of_examples.values()
            for number, corrected in zip(pvalues, holm(list(pvalues.values())), strict=True)
        }

    def _pvalue(self, row: TableRow, metric: str) -> float | None:
        baseline, measure = self.baseline(row), tested_as(row.first, metric)
        if baseline is None or baseline is row or measure is None:
            return None
        pairs = of_common_seeds(row, baseline)
        both = tested(measure, [mine for mine, _ in pairs], [other for _, other in pairs], self._parts_of)
        return None if both is None else both.pvalue


def is_pattern(name: str) -> bool:
    """Whether a name of a baseline stands for several methods."""
    return bool(WILDCARDS & set(name))


def _best_of_its_bytes(row: TableRow, baselines: Sequence[TableRow]) -> TableRow | None:
    as_small = [other for other in baselines if _may_stand_beside(row, other)]
    higher = row.first.measure.higher_is_better
    if higher is None or not as_small or not all(map(_has_quality, (row, *as_small))):
        return None
    return max(as_small, key=_quality) if higher else min(as_small, key=_quality)


def _may_stand_beside(row: TableRow, other: TableRow) -> bool:
    mine, of_other = row.first.state, other.first.state
    as_small = mine is not None and of_other is not None and of_other.bytes <= mine.bytes * (1 + MOST_MORE)
    alike = row.examples == other.examples and bool(of_common_seeds(row, other))
    return as_small and alike and learned(other.first) <= learned(row.first)


def _has_quality(row: TableRow) -> bool:
    """Whether the task's measure was stored, and not taken away by a filter."""
    return all(run.measure.name in run.metrics for run in row.runs)


def _quality(row: TableRow) -> float:
    """The task's measure, as a mean over seeds."""
    return statistics.fmean(run.metrics[run.measure.name].value for run in row.runs)
