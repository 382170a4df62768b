"""Costs as they were measured beside those that the methods' formulas give."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from contextlab.reports import costs
from contextlab.reports.cells import Cell, Column, Table
from contextlab.reports.dimensions import DIMENSIONS, Result, latest
from contextlab.reports.names import Names

COMPARED = {"TFLOPs contextualize": "TFLOP", "TFLOPs query": "TFLOP", "state MiB": "MiB"}
"""Costs that have a formula, and their units."""
SENTENCE = (
    "Measured cost, the same by formula from lengths and settings alone, and the difference in percent of the formula; "
    "empty where a method has no formula"
)


def tables(results: Sequence[Result], names: Names | None = None) -> Iterator[Table]:
    """One table for every task, context and machine of which some result has a formula.

    Args:
        results: from `reports.stored.summaries`.
        names: for display.
    """
    names = names or Names()
    groups: dict[tuple[str, ...], dict[str, Result]] = {}
    others = [name for name in DIMENSIONS if name != "method"]
    for words, result in latest(results):
        key = tuple(f"{name} {names.of(name, words[name])}" for name in others)
        groups.setdefault(key, {})[names.of("method", words["method"])] = result
    for key, members in groups.items():
        made = _table(members, ", ".join(key))
        if made.column(1) or made.column(4) or made.column(7):
            # Columns of a phase that no method has are left out.
            yield made.part(range(len(made.rows)), [n for n in range(len(made.columns)) if made.column(n)])


def _table(members: dict[str, Result], details: str) -> Table:
    columns: list[Column] = []
    cells: dict[tuple[int, int], Cell] = {}
    for name, unit in COMPARED.items():
        first = len(columns)
        columns += [
            Column(name, "measured", "cost", "measured", unit),
            Column(name, "by formula", "cost", "formula", unit),
            Column(name, "difference", "difference", "difference", "%"),
        ]
        for row, result in enumerate(members.values()):
            known = costs.numbers(result)
            measured, formula = (known.get(one) for one in (name, f"{name} by formula"))
            cells |= {(row, first + n): one for n, one in enumerate((measured, formula)) if one is not None}
            if measured is not None and formula is not None and (measured.value == formula.value or formula.value):
                gap = measured.value - formula.value
                cells[row, first + 2] = Cell(100 * gap / formula.value if gap else 0.0)
    return Table(("method",), tuple((name,) for name in members), tuple(columns), cells, (SENTENCE,), (details,))
