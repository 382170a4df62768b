"""Costs as they were measured beside those that the methods' formulas give."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from contextlab.harness.stored import Result
from contextlab.reports import costs
from contextlab.reports.break_even import questions_of
from contextlab.reports.cells import Cell, Column, Table
from contextlab.reports.dimensions import DIMENSIONS, latest
from contextlab.reports.filters import LeftOut
from contextlab.reports.names import Names

COMPARED = {
    "TFLOPs contextualize": ("TFLOPs per context", "TFLOP"),
    "TFLOPs query": ("TFLOPs per question", "TFLOP"),
    "state MiB": ("state MiB", "MiB"),
}
"""Costs that have a formula, with their headings and units."""
QUERY = "TFLOPs query"
"""The cost of all questions of an example, which is shown for one of them, as in the other tables of costs."""
SENTENCE = (
    "Measured cost, the same by formula from lengths and settings alone, and the difference in percent of the formula; "
    "a text without questions counts as one, empty: a method without a formula"
)


def tables(results: Sequence[Result], names: Names | None = None, left_out: LeftOut | None = None) -> Iterator[Table]:
    """One table for every task, context and machine of which some result has a formula.

    Args:
        results: from `reports.stored.summaries`.
        names: for display.
        left_out: stored runs that are not among the results.
    """
    names = names or Names()
    groups: dict[tuple[str, ...], dict[str, Result]] = {}
    others = [name for name in DIMENSIONS if name != "method"]
    shown = latest(results)
    for words, result in shown:
        key = tuple(f"{name} {names.of(name, words[name])}" for name in others)
        groups.setdefault(key, {})[names.of("method", words["method"])] = result
    group_tables = [_table(members, ", ".join(key)) for key, members in groups.items()]
    with_formula = [table for table in group_tables if any(table.column(number) for number in (1, 4, 7))]
    rest = len(shown) - sum(len(table.rows) for table in with_formula)
    without = (left_out or LeftOut(len(shown))).also(rest, "of tasks without a formula")
    for table in with_formula:
        # Columns of a phase that no method has are left out.
        columns = [number for number in range(len(table.columns)) if table.column(number)]
        yield dataclasses.replace(table.part(range(len(table.rows)), columns), left_out=without.sentence)


def _table(members: dict[str, Result], about: str) -> Table:
    columns: list[Column] = []
    cells: dict[tuple[int, int], Cell] = {}
    for name, (heading, unit) in COMPARED.items():
        first = len(columns)
        columns += [
            Column(heading, "measured", "cost", "measured", unit),
            Column(heading, "by formula", "cost", "formula", unit),
            Column(heading, "difference", "difference", "difference", "%"),
        ]
        for row, result in enumerate(members.values()):
            numbers = costs.numbers(result)
            share = questions_of(result) if name == QUERY else 1.0
            both = (numbers.get(cost) for cost in (name, f"{name} by formula"))
            measured, formula = (cost and Cell(cost.value / share) for cost in both)
            cells |= {(row, first + n): cost for n, cost in enumerate((measured, formula)) if cost is not None}
            if measured is not None and formula is not None and (measured.value == formula.value or formula.value):
                gap = measured.value - formula.value
                cells[row, first + 2] = Cell(100 * gap / formula.value if gap else 0.0)
    return Table(("method",), tuple((name,) for name in members), tuple(columns), cells, (SENTENCE, about))
