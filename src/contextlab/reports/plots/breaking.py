"""Breaks long names into lines at places where a reader expects it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

PIECE = re.compile(r"[^\s,(]*[\s,(]?")
"""Letters up to a place where a name may be broken: behind a space, a comma or a bracket."""
PART = re.compile(r"[^-/=\N{EN DASH}]*[-/=\N{EN DASH}]?")
"""The same within a piece that is too long for a line."""
LINES = 3
"""Of a name, as far as the widest line allows."""


def lines_of(text: str, width: int) -> list[str]:
    """A text in lines of at most so many letters; a word is broken only where it is longer than a line.

    Args:
        text: in one line.
        width: letters of a line.
    """
    lines = [""]
    for piece in _pieces(text, width):
        if lines[-1] and len((lines[-1] + piece).rstrip()) > width:
            lines.append("")
        lines[-1] += piece
    return [line.rstrip() for line in lines]


def broken(text: str, width: int) -> str:
    """The same as one text."""
    return "\n".join(lines_of(text, width))


def width_for(texts: Iterable[str], widths: Iterable[int]) -> int:
    """The first of some widths at which no text needs more than `LINES` lines, or else the last one."""
    known = list(texts)
    *narrow, widest = widths
    return next((width for width in narrow if all(len(lines_of(text, width)) <= LINES for text in known)), widest)


def _pieces(text: str, width: int) -> Iterator[str]:
    for piece in PIECE.findall(text):
        for part in [piece] if len(piece.rstrip()) <= width else PART.findall(piece):
            yield from (part[start : start + width] for start in range(0, len(part), width))
