"""Changes of a whole table: its order, and the mean over tasks."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections import defaultdict
from collections.abc import Sequence

from contextlab.errors import UserError, unknown
from contextlab.reports.cells import Cell, Column, Table

MEAN = "mean over tasks"


def sorted_by(table: Table, name: str) -> Table:
    """A table with its rows in the order of a column or of a part of their labels; with `-` descending.

    Rows without a number are the last. Of several columns with the same name the first one counts.

    Raises:
        UserError: when there is no such column.
    """
    if not name:
        return table
    wanted, descending = name.removeprefix("-"), name.startswith("-")
    positions = range(len(table.rows))
    if wanted in table.keys:
        key = table.keys.index(wanted)
        order = sorted(positions, key=lambda row: table.rows[row][key], reverse=descending)
        return table.part(order, range(len(table.columns)))
    columns = [n for n, column in enumerate(table.columns) if wanted in (column.name, column.label)]
    if not columns:
        raise unknown("column", wanted, {*table.keys, *(column.name for column in table.columns)})
    sign = -1 if descending else 1

    def value(row: int) -> float:
        cell = table.cells.get((row, columns[0]))
        return math.inf if cell is None else sign * cell.value

    return table.part(sorted(positions, key=value), range(len(table.columns)))


def with_mean_over_tasks(table: Table, columns: Sequence[str]) -> Table:
    """A table with the means of the qualities over tasks: further columns, or rows where the rows are tasks.

    A mean is shown only where every task has the number, and has no interval.

    Args:
        table: a table of several tasks.
        columns: the dimensions of its columns.

    Raises:
        UserError: when neither rows nor columns are tasks, or columns also have another dimension.
    """
    if "task" in table.keys:
        return _with_mean_rows(table, table.keys.index("task"))
    if list(columns) != ["task"]:
        raise UserError("A mean over tasks needs tasks alone in the columns, or in the rows: name --columns task.")
    return _with_mean_columns(table)


def _with_mean_columns(table: Table) -> Table:
    alike: dict[Column, list[int]] = defaultdict(list)
    for number, column in enumerate(table.columns):
        if column.kind in ("metric", "share", "difference"):
            alike[dataclasses.replace(column, group=MEAN, compared=False)].append(number)
    groups = {column.group for column in table.columns}
    means = {column: numbers for column, numbers in alike.items() if len(numbers) == len(groups) > 1}
    cells = dict(table.cells)
    for number, numbers in enumerate(means.values(), start=len(table.columns)):
        for row in range(len(table.rows)):
            values = [table.cells[row, one].value for one in numbers if (row, one) in table.cells]
            if len(values) == len(groups):
                cells[row, number] = Cell(statistics.fmean(values))
    return dataclasses.replace(table, columns=(*table.columns, *means), cells=cells)


def _with_mean_rows(table: Table, key: int) -> Table:
    tasks = {label[key] for label in table.rows}
    alike: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for row, label in enumerate(table.rows):
        alike[*label[:key], MEAN, *label[key + 1 :]].append(row)
    cells, rows = dict(table.cells), list(table.rows)
    for label, members in alike.items():
        means = _means(table, members) if len(members) == len(tasks) > 1 else {}
        cells |= {(len(rows), column): cell for column, cell in means.items()}
        rows += [label] if means else []
    return dataclasses.replace(table, rows=tuple(rows), cells=cells)


def _means(table: Table, rows: Sequence[int]) -> dict[int, Cell]:
    """The means over some rows, of the qualities that all of them have."""
    means = {}
    for number, column in enumerate(table.columns):
        there = [table.cells[row, number].value for row in rows if (row, number) in table.cells]
        if column.kind in ("metric", "share", "difference") and len(there) == len(rows):
            means[number] = Cell(statistics.fmean(there))
    return means
