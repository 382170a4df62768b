"""Tables for a terminal: nothing is cut off, and a table that is too wide becomes several."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from contextlab import harmless
from contextlab.reports import captions
from contextlab.reports.cells import Column, Table, in_groups, split_columns
from contextlab.reports.names import RowLabels, short_labels

if TYPE_CHECKING:
    from rich.table import Table as Screen
    from rich.text import Text

LONGEST = 24
"""The most characters of a part of a row's label; longer ones have a note."""
STYLES = {"": "", "best": "bold", "second": "underline"}
GAPS = (2, 1)
"""Spaces between columns: the usual, and for a table that would otherwise be too wide."""


def screens(table: Table, width: int) -> Iterator[Screen]:
    """The table in parts, one below the other, each at most `width` characters wide."""
    labels = short_labels(table, LONGEST)
    of_labels = sum(_label_width(table, labels, part) for part in range(len(table.keys)))
    widths = [_width(table, number) for number in range(len(table.columns))]
    parts = len(table.keys)
    for gap in GAPS:
        # A column needs its gap; the last one leaves it out.
        room = width - of_labels - gap * (parts - 1)
        columns = split_columns(in_groups(table.columns), [column + gap for column in widths], room)
        if len(columns) == 1:
            break
    for part in columns:
        yield _screen(table, labels, part, gap)


def below(table: Table, *, notes: bool = False) -> Iterator[str]:
    """The lines below the table: notes on labels, the caption, and on request how the numbers were made."""
    for letter, note in short_labels(table, LONGEST).notes.items():
        yield f"[{letter}] {note}"
    yield captions.below(table)
    yield from (f"* {note}." for note in captions.remarks(table) if notes)


def _screen(table: Table, labels: RowLabels, columns: Sequence[int], gap: int) -> Screen:
    """One table of some columns; names are shown literally."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as Screen
    from rich.text import Text

    groups = [name for name, _ in in_groups([table.columns[number] for number in columns])]
    title = Text(harmless.line(groups[0])) if len(groups) == 1 and groups[0] else None
    # The box has one space between columns.
    screen = Screen(box=SIMPLE_HEAD, padding=(0, gap - 1, 0, 0), pad_edge=False, show_edge=False, title=title)
    for part, key in enumerate(table.keys):
        screen.add_column(Text(key), min_width=_label_width(table, labels, part), overflow="fold")
    for number in columns:
        heading = Text(harmless.text("\n".join(_heading(table.columns[number], with_group=len(groups) > 1))))
        screen.add_column(heading, justify="right", no_wrap=True, min_width=_width(table, number))
    before = ""
    for row, label in enumerate(labels.rows):
        texts = [Text(harmless.line(f"{name} [{letter}]" if letter else name)) for name, letter in label]
        first = texts[0].plain
        if len(texts) > 1 and first == before:
            texts[0] = Text("")
        screen.add_row(*texts, *(_number(table, row, number) for number in columns))
        before = first
    return screen


def _number(table: Table, row: int, column: int) -> Text:
    """A number, marked by its style."""
    from rich.text import Text

    cell = table.cells.get((row, column))
    return Text(table.text(row, column), style=STYLES[cell.mark if cell is not None else ""])


def _heading(column: Column, *, with_group: bool) -> list[str]:
    """The lines of a heading: group, title, unit."""
    lines = [*_broken(column.title), *([column.unit] if column.unit else [])]
    return [*(_broken(column.group) if with_group else []), *lines]


def _broken(text: str, longest: int = 16) -> list[str]:
    """A heading in lines, broken after spaces and slashes, and within a word only where it is longer than a line."""
    lines = [""]
    for word in re.findall(r"[^\s/(,]*[\s/(,]*", text):
        for piece in (word[n : n + longest] for n in range(0, len(word), longest)):
            if len(lines[-1]) + len(piece.rstrip()) > longest:
                lines.append("")
            lines[-1] += piece
    return [line.strip() for line in lines if line.strip()]


def _width(table: Table, number: int) -> int:
    """The width of a column: the longest number, or the longest line of its heading."""
    texts = [table.text(row, number) for row in range(len(table.rows))]
    return max(map(len, [*_heading(table.columns[number], with_group=True), *texts]))


def _label_width(table: Table, labels: RowLabels, part: int) -> int:
    """The width that a part of the labels needs: its longest word, because it may be written in several lines."""
    texts = [f"{label[part][0]} [{label[part][1]}]" if label[part][1] else label[part][0] for label in labels.rows]
    words = [word for text in texts for word in text.split(" ")]
    whole = max(map(len, texts), default=0)
    longest = whole if whole <= LONGEST else max(map(len, words), default=0)
    return max(len(table.keys[part]), min(longest, LONGEST))
