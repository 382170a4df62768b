"""Colours, markers and lines: the same for a method and for each of its forms in every picture."""

from __future__ import annotations

import dataclasses
import re
import zlib
from collections.abc import Iterable, Iterator

from contextlab.grammar import MARK

INCHES = 6.0
"""Width of a picture. In a column of a paper, 3.25 inches, 12 points become 6.5, and on a phone, 360 pixels, 10."""
POINTS = 13.0
SMALL = 12.0
GREY = "#555555"
PALE = "#b0b0b0"
"""Of lines that lead to labels, and of series without a label."""

LOOKS: dict[str, tuple[str, str]] = {
    "full": ("#000000", "o"),
    "window": ("#666666", "s"),
    "closed-book": ("#999999", "X"),
    "bm25": ("#994455", "2"),
    "dense": ("#EE8866", "$=$"),
    "drop": ("#997700", "3"),
    "sliding": ("#0072B2", "^"),
    "sinks": ("#56B4E9", "v"),
    "snapkv": ("#CC6677", "+"),
    "h2o": ("#88CCEE", "1"),
    "press": ("#DDCC77", r"$\#$"),
    "selfextend": ("#332288", "4"),
    "retrieval": ("#009E73", "D"),
    "longmem": ("#D55E00", "P"),
    "memtrm": ("#999933", "<"),
    "trime": ("#117733", ">"),
    "hso": ("#CC79A7", "h"),
    "dynamic-eval": ("#882255", "p"),
    "evalm": ("#E69F00", "*"),
    "generative-adapter": ("#332288", "d"),
    "finetune": ("#AA4499", "8"),
    "cartridge": ("#AA3377", "|"),
    "ultragist": ("#44AA99", "H"),
    "least-squares": ("#EE3377", "x"),
    "composed": ("#DDCC77", "_"),
}
"""Colour and marker of every method: Okabe and Ito's colours and Tol's, which most colour-blind readers tell apart."""
CONTROLS = {"own - none": ("#0072B2", "o"), "own - wrong": ("#D55E00", "s")}
"""Of the gains beyond a control, which are drawn beside no method."""
POLYGONS: dict[str, tuple[tuple[float, float], ...]] = {
    "hourglass": ((-1, -1), (1, -1), (0, 0), (1, 1), (-1, 1), (0, 0)),
    "bow": ((-1, -1), (0, 0), (1, -1), (1, 1), (0, 0), (-1, 1)),
    "house": ((-1, -1), (1, -1), (1, 0), (0, 1), (-1, 0)),
    "arrow": ((-1, -1), (0, -0.4), (1, -1), (0, 1)),
    "shield": ((-1, 1), (1, 1), (1, 0), (0, -1), (-1, 0)),
    "dart": ((-1, 1), (0, 0.4), (1, 1), (0, -1)),
    "wedge": ((-1, -1), (1, -1), (-1, 1)),
    "corner": ((1, 1), (-1, 1), (1, -1)),
    "roof": ((-1, -0.7), (1, -0.7), (0.4, 0.7), (-0.4, 0.7)),
    "cup": ((-1, 0.7), (1, 0.7), (0.4, -0.7), (-0.4, -0.7)),
    "slash": ((-1, -0.8), (0.2, -0.8), (1, 0.8), (-0.2, 0.8)),
    "backslash": ((1, -0.8), (-0.2, -0.8), (-1, 0.8), (0.2, 0.8)),
    "tee": ((-1, 1), (1, 1), (1, 0.3), (0.35, 0.3), (0.35, -1), (-0.35, -1), (-0.35, 0.3), (-1, 0.3)),
    "angle": ((-1, 1), (-0.3, 1), (-0.3, -0.3), (1, -0.3), (1, -1), (-1, -1)),
}
"""Corners of markers that no built-in method has, between -1 and 1: for other methods, and for forms of a method."""
OTHERS = tuple(zip(("#661100", "#6699CC", "#BB5566", "#DDAA33"), POLYGONS, strict=False))
"""For all other methods, chosen by the name; where it is taken in a picture, the next one."""
LINES = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)))
"""For several forms of one method."""


@dataclasses.dataclass(frozen=True)
class Look:
    """How a series is drawn.

    Attributes:
        colour: as `#rrggbb`.
        marker: of matplotlib, or one of `POLYGONS`.
        fill: of the marker: `full` or `none`.
        line: dashes.
    """

    colour: str
    marker: str
    fill: str
    line: str | tuple[int, tuple[int, ...]]


def looks(series: Iterable[tuple[str, str]]) -> list[Look]:
    """The look of every series of a picture; no two have the same colour and marker, as long as there are markers.

    A method has one colour everywhere, and without settings its own marker. Another form of it has another marker, by
    its label, so that it has the same one in the next picture; where that is taken, it has the next one.

    Args:
        series: registered name of the method, and its label as in tables; an empty one is the name.
    """
    others: dict[int, str] = {}
    used: set[tuple[str, str, str]] = set()
    result = []
    for method, label in series:
        colour, own = LOOKS.get(method) or CONTROLS.get(method) or OTHERS[_other(method, others)]
        markers = [
            (own, "full"),
            *((marker, fill) for fill in ("full", "none") for marker in POLYGONS if marker != own),
        ]
        first = _first(method, MARK.sub("", label).strip())
        order = [n % len(markers) for n in range(first, first + len(markers))]
        number = next((n for n in order if (colour, *markers[n]) not in used), first)
        used.add((colour, *markers[number]))
        result.append(Look(colour, *markers[number], LINES[number % len(LINES)]))
    return result


def _first(method: str, form: str) -> int:
    """The number of a form's marker: 0 for a method without settings, and hollow ones only where others are taken."""
    return 0 if form in ("", method) else 1 + zlib.crc32(form.encode()) % (len(POLYGONS) - 1)


def _other(method: str, methods_by_number: dict[int, str]) -> int:
    """The number of a look for another method; the same again for the same method."""
    first = zlib.crc32(method.encode()) % len(OTHERS)
    numbers = [(first + step) % len(OTHERS) for step in range(len(OTHERS))]
    number = next((n for n in numbers if methods_by_number.get(n, method) == method), first)
    methods_by_number.setdefault(number, method)
    return number


PIECE = re.compile(r"[^\s,(]*[\s,(]?")
"""Letters up to a place where a name may be broken: after a space, a comma or a bracket."""
PART = re.compile(r"[^-/=\N{EN DASH}]*[-/=\N{EN DASH}]?")
"""The same within a piece that is too long for a line."""
MOST_LINES = 3
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
    """The first of some widths at which no text needs more than `MOST_LINES` lines, or else the last one."""
    texts = list(texts)
    *narrow, widest = widths
    return next((width for width in narrow if all(len(lines_of(text, width)) <= MOST_LINES for text in texts)), widest)


def _pieces(text: str, width: int) -> Iterator[str]:
    for piece in PIECE.findall(text):
        for part in [piece] if len(piece.rstrip()) <= width else PART.findall(piece):
            yield from (part[start : start + width] for start in range(0, len(part), width))
