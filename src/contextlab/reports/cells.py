"""A table of numbers before it is printed: rows, groups of columns, cells and the sentences of its caption."""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Literal

import pandas

from contextlab.errors import UserError, unknown

ColumnKind = Literal["count", "metric", "difference", "share", "cost", "text"]
Mark = Literal["", "best", "second"]
ROUNDING = 1e-5
"""Metrics and differences up to this are written as 0: they are sums of float32 numbers."""
MOST_DECIMALS = 5


@dataclasses.dataclass(frozen=True)
class Cell:
    """One number.

    Attributes:
        value: the number.
        low: lower end of its 95 % interval; None without one.
        high: upper end.
        deviation: standard deviation over seeds; None for one seed.
        disturbed: whether another program was running while these seconds were measured.
        mark: whether tests say that it is the best or the second best of its column.
        halved: whether this score is below half of that at the shortest length.
        text: the number as it is written with its interval; made from the other attributes when empty.
    """

    value: float
    low: float | None = None
    high: float | None = None
    deviation: float | None = None
    disturbed: bool = False
    mark: Mark = ""
    halved: bool = False
    text: str = ""

    @property
    def sign(self) -> str:
        """What stands after the number: `~` where it was disturbed, `*` where it is halved."""
        return "~" if self.disturbed else "*" if self.halved else ""


@dataclasses.dataclass(frozen=True)
class Column:
    """One column of numbers.

    Attributes:
        group: heading above several columns, as the name of a task; empty without one.
        name: as options name it: a metric, `share`, or a cost with its unit.
        kind: how its numbers are written.
        title: heading without the unit, short enough for a terminal or a paper.
        unit: unit of the numbers, empty without one.
        compared: whether tests can mark its best number.
    """

    group: str
    name: str
    kind: ColumnKind
    title: str
    unit: str = ""
    compared: bool = dataclasses.field(default=False, compare=False)

    @property
    def label(self) -> str:
        """Group and name in one line."""
        return f"{self.group} {self.name}".strip()

    @property
    def heading(self) -> str:
        """Title and unit, for narrow tables."""
        return f"{self.title} ({self.unit})" if self.unit else self.title


@dataclasses.dataclass(frozen=True)
class Table:
    """Numbers of results in rows and columns.

    Attributes:
        keys: what the parts of a row's label are: `method`, `task` and so on.
        rows: the labels.
        columns: the columns.
        cells: numbers by row and column; those that were not measured are missing.
        sentences: of the caption, at most two and without full stops: the data, and what the numbers are.
        legend: further parts of the caption: what headings and signs mean, and what is mixed.
        left_out: which stored runs are not shown, and why, without a full stop; empty where all are.
        notes: how the numbers were made, for those who ask.
    """

    keys: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    columns: tuple[Column, ...]
    cells: Mapping[tuple[int, int], Cell]
    sentences: tuple[str, ...]
    legend: tuple[str, ...] = ()
    left_out: str = ""
    notes: tuple[str, ...] = ()

    @property
    def caption(self) -> str:
        """The sentences, the legend, and what is left out, in one paragraph."""
        return paragraph((*self.sentences, *self.legend, *filter(None, [self.left_out])))

    def column(self, number: int) -> list[Cell]:
        """The cells of a column that are there."""
        return [self.cells[row, number] for row in range(len(self.rows)) if (row, number) in self.cells]

    def part(self, rows: Sequence[int], columns: Sequence[int]) -> Table:
        """The table of these rows and columns, in this order."""
        cells = {
            (new_row, new_column): self.cells[row, column]
            for new_row, row in enumerate(rows)
            for new_column, column in enumerate(columns)
            if (row, column) in self.cells
        }
        labels = tuple(self.rows[row] for row in rows)
        return dataclasses.replace(self, rows=labels, columns=tuple(self.columns[n] for n in columns), cells=cells)

    def text(self, row: int, number: int) -> str:
        """A cell as text; empty where nothing was measured."""
        cell = self.cells.get((row, number))
        return "" if cell is None else written(cell, self.columns[number].kind)

    def to_frame(self) -> pandas.DataFrame:
        """The table as text, with its caption and notes in `attrs`."""
        index = pandas.MultiIndex.from_tuples(list(self.rows), names=self.keys)
        texts = [[self.text(row, number) for number in range(len(self.columns))] for row in range(len(self.rows))]
        frame = pandas.DataFrame(texts, index=index, columns=[column.label for column in self.columns])
        frame.attrs |= {"caption": self.caption, "notes": paragraph(self.notes)}
        return frame


def paragraph(sentences: Sequence[str]) -> str:
    """Sentences with their full stops."""
    return " ".join(f"{sentence}." for sentence in sentences)


def written(cell: Cell, kind: ColumnKind) -> str:
    """A number with its interval or standard deviation."""
    if cell.text:
        return cell.text
    return " ".join(filter(None, [value(cell, kind), deviation(cell, kind), interval(cell, kind), cell.sign]))


def value(cell: Cell, kind: ColumnKind) -> str:
    """A number without its interval."""
    return number(cell.value, kind, _decimals(cell, kind))


def deviation(cell: Cell, kind: ColumnKind) -> str:
    """The standard deviation of a number, after its sign; empty without a deviation."""
    if cell.deviation is None:
        return ""
    return f"± {number(cell.deviation, kind, _decimals(cell, kind)).removeprefix('+')}"


def interval(cell: Cell, kind: ColumnKind) -> str:
    """The interval of a number in brackets; empty without one."""
    if cell.low is None or cell.high is None:
        return ""
    decimals = _decimals(cell, kind)
    return f"[{_fixed(cell.low, kind, decimals)}, {_fixed(cell.high, kind, decimals)}]"


def number(value: float, kind: ColumnKind, decimals: int | None = None) -> str:
    """A number as text: three decimals, two in shares; three digits in costs; two digits of what is smaller than these.

    Args:
        value: the number.
        kind: how it is written.
        decimals: more of them than usual, for metrics, differences and shares.
    """
    if kind == "count":
        return f"{value:,.0f}"
    if kind == "cost":
        return f"{value:.3g}" if value < 100 else f"{value:,.0f}"
    decimals = _usual(kind) if decimals is None else decimals
    if ROUNDING < abs(value) < 10**-decimals:
        return f"{value:{'+' if kind == 'difference' else ''}.2g}"
    return _fixed(value, kind, decimals)


def _fixed(value: float, kind: ColumnKind, decimals: int) -> str:
    """A number with these decimals, and without any where it is very large."""
    sign = "+" if kind == "difference" else ""
    if abs(value) >= 1e5 and kind != "share":
        return f"{value:{sign}.3g}"
    # A bound of a difference that is rounded to 0 keeps the sign that says whether the interval holds 0.
    zero = "" if kind == "difference" and abs(value) > ROUNDING else "z"
    return f"{value:{sign}{zero}.{decimals}f}"


def _decimals(cell: Cell, kind: ColumnKind) -> int:
    """So many decimals that an interval, or a deviation, spans ten units of the last one, and one in shares."""
    usual = _usual(kind)
    bounded = cell.low is not None and cell.high is not None
    spread = cell.high - cell.low if bounded else cell.deviation  # type: ignore[operator]
    if spread is None or not ROUNDING < spread < 1:
        return usual
    return min(max(usual, usual - 2 + math.ceil(-math.log10(1.01 * spread))), MOST_DECIMALS)


def _usual(kind: ColumnKind) -> int:
    return 2 if kind == "share" else 3


def in_groups(columns: Sequence[Column]) -> list[tuple[str, list[int]]]:
    """The numbers of neighbouring columns with the same group."""
    groups: list[tuple[str, list[int]]] = []
    for position, column in enumerate(columns):
        if not groups or groups[-1][0] != column.group:
            groups.append((column.group, []))
        groups[-1][1].append(position)
    return groups


MEAN = "mean over tasks"


def split_columns(groups: Sequence[tuple[str, list[int]]], widths: Sequence[float], room: float) -> list[list[int]]:
    """The columns of several tables, each at most as wide as the room beside the labels.

    Groups of columns stay together where they fit. A column is alone in a table only where none beside it fits.

    Args:
        groups: numbers of neighbouring columns.
        widths: of every column.
        room: width for columns.
    """
    tables: list[list[int]] = []
    for _, columns in groups:
        whole = sum(widths[column] for column in columns)
        for part in [columns] if whole <= room else [[column] for column in columns]:
            width = sum(widths[column] for column in part)
            if tables and sum(widths[column] for column in tables[-1]) + width <= room:
                tables[-1] += part
            else:
                tables.append(list(part))
    return _without_single(tables, widths, room)


def _without_single(tables: list[list[int]], widths: Sequence[float], room: float) -> list[list[int]]:
    """The tables, a single column of one joined by the last or first column of a wider neighbour."""
    for before, after in itertools.pairwise(tables):
        if len(after) == 1 and len(before) > 2 and widths[before[-1]] + widths[after[0]] <= room:
            after.insert(0, before.pop())
        elif len(before) == 1 and len(after) > 2 and widths[before[0]] + widths[after[0]] <= room:
            before.append(after.pop(0))
    return tables


def sorted_by(table: Table, name: str) -> Table:
    """A table with its rows in the order of a column or of a part of their labels; with `-` descending.

    Rows without a number are the last. Of several columns with the same name the first one counts.

    Raises:
        UserError: when there is no such column.
    """
    if not name:
        return table
    heading, descending = name.removeprefix("-"), name.startswith("-")
    positions = range(len(table.rows))
    if heading in table.keys:
        key = table.keys.index(heading)
        order = sorted(positions, key=lambda row: table.rows[row][key], reverse=descending)
        return table.part(order, range(len(table.columns)))
    columns = [n for n, column in enumerate(table.columns) if heading in (column.name, column.label)]
    if not columns:
        raise unknown("column", heading, {*table.keys, *(column.name for column in table.columns)})
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
            values = [
                table.cells[row, task_column].value for task_column in numbers if (row, task_column) in table.cells
            ]
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
