"""Tables of numbers without results behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from contextlab.reports.cells import Cell, Column, ColumnKind, Table

NATS = Column("", "nats_per_token", "metric", "nats/token", "", compared=True)
STATE = Column("", "state MiB", "cost", "state", "MiB")


def column(name: str, kind: ColumnKind = "metric", group: str = "", unit: str = "") -> Column:
    return Column(group, name, kind, name, unit)


def table(
    rows: Mapping[str, Sequence[Cell | float | None]], columns: Sequence[Column], keys: Sequence[str] = ("method",)
) -> Table:
    """A table from its cells by label; parts of a label are separated by semicolons."""
    cells = {
        (n, m): cell if isinstance(cell, Cell) else Cell(cell)
        for n, row in enumerate(rows.values())
        for m, cell in enumerate(row)
        if cell is not None
    }
    labels = tuple(tuple(label.split(";")) for label in rows)
    return Table(
        tuple(keys),
        labels,
        tuple(columns),
        cells,
        ("pg22/S2: real: 50 % of the books & more (local)",),
        ("x_y",),
        notes=("how_so",),
    )
