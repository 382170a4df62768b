"""Colours, markers and lines: the same for a method in every picture, and all different without colour."""

from __future__ import annotations

import dataclasses
import itertools
import zlib
from collections.abc import Iterable

INCHES = 3.25
"""Width of a column of a paper."""
POINTS = 7.5
SMALL = 7.0
GREY = "#555555"

LOOKS: dict[str, tuple[str, str]] = {
    "full": ("#000000", "o"),
    "window": ("#666666", "s"),
    "closed-book": ("#999999", "X"),
    "sliding": ("#0072B2", "^"),
    "sinks": ("#56B4E9", "v"),
    "retrieval": ("#009E73", "D"),
    "longmem": ("#D55E00", "P"),
    "memtrm": ("#999933", "<"),
    "trime": ("#117733", ">"),
    "hso": ("#CC79A7", "h"),
    "dynamic-eval": ("#882255", "p"),
    "evalm": ("#E69F00", "*"),
    "generative-adapter": ("#332288", "d"),
    "finetune": ("#AA4499", "8"),
    "ultragist": ("#44AA99", "H"),
}
"""Colour and marker of every method: Okabe and Ito's colours and Tol's, which most colour-blind readers tell apart."""
CONTROLS = {"own - none": ("#0072B2", "o"), "own - wrong": ("#D55E00", "s")}
"""Of the gains beyond a control, which are drawn beside no method."""
OTHERS = (
    ("#661100", r"$\clubsuit$"),
    ("#6699CC", r"$\spadesuit$"),
    ("#BB5566", r"$\heartsuit$"),
    ("#DDAA33", r"$\Omega$"),
)
"""For all other methods, chosen by the name; where it is taken in a picture, the next one."""
LINES = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)))
"""For several forms of one method."""
THIN = ("x", "+", "1", "2", "3", "4", "|", "_")
"""Markers that no method has: for its third form and further ones, the first that the picture does not have yet."""


@dataclasses.dataclass(frozen=True)
class Look:
    """How a series is drawn."""

    colour: str
    marker: str
    fill: str
    line: str | tuple[int, tuple[int, ...]]


def looks(methods: Iterable[str]) -> list[Look]:
    """The look of every series of a picture, by the registered names of their methods in the order of the series.

    A method has one colour and one marker everywhere. A second form of it in the same picture has the marker hollow, a
    third one a marker of thin lines; the lines differ too.
    """
    counts: dict[str, int] = {}
    others: dict[int, str] = {}
    thin = itertools.cycle(THIN)
    result = []
    for method in methods:
        number = counts.get(method, 0)
        counts[method] = number + 1
        colour, marker = LOOKS.get(method) or CONTROLS.get(method) or OTHERS[_other(method, others)]
        marker = marker if number < 2 else next(thin)
        result.append(Look(colour, marker, "none" if number == 1 else "full", LINES[number % len(LINES)]))
    return result


def _other(method: str, taken: dict[int, str]) -> int:
    """The number of a look for another method; the same again for the same method."""
    first = zlib.crc32(method.encode()) % len(OTHERS)
    numbers = [(first + step) % len(OTHERS) for step in range(len(OTHERS))]
    number = next((n for n in numbers if taken.get(n, method) == method), first)
    taken.setdefault(number, method)
    return number
