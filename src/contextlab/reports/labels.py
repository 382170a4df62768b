"""Short labels for narrow tables: what makes a label long becomes a note below the table."""

from __future__ import annotations

import dataclasses
import itertools
import string
from collections.abc import Sequence

from contextlab.reports.cells import Table

LETTERS = string.ascii_lowercase


@dataclasses.dataclass(frozen=True)
class Labels:
    """The labels of a table's rows.

    Attributes:
        rows: the parts of every label, each with the letter of its note; the letter is empty without one.
        notes: the notes by letter.
    """

    rows: tuple[tuple[tuple[str, str], ...], ...]
    notes: dict[str, str]


def shortened(table: Table, longest: int) -> Labels:
    """Labels of which no part is longer than `longest`, where its settings and marks can become a note."""
    notes: dict[str, str] = {}
    rows = tuple(tuple(_short(part, longest, notes) for part in label) for label in table.rows)
    return Labels(rows, {letter: note for note, letter in notes.items()})


def _short(part: str, longest: int, notes: dict[str, str]) -> tuple[str, str]:
    """The part without what stands in its brackets, and the letter of the note about that."""
    start = part.find("(")
    if len(part) <= longest or start <= 0:
        return part, ""
    note = _unbracketed(part[start:])
    notes.setdefault(note, letter(len(notes)))
    return part[:start].rstrip(), notes[note]


def _unbracketed(text: str) -> str:
    """`(K=32) (untrained)` as `K=32; untrained`, with a space behind every comma."""
    inner = text.strip().removeprefix("(").removesuffix(")").replace(") (", "; ")
    return ", ".join(part.strip() for part in inner.split(","))


def letter(number: int) -> str:
    """a, b, ..., z, aa, ab, ..."""
    before, last = divmod(number, len(LETTERS))
    return (letter(before - 1) if before else "") + LETTERS[last]


def chunks(groups: Sequence[tuple[str, list[int]]], widths: Sequence[float], room: float) -> list[list[int]]:
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
