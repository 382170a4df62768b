"""What a picture shows, before it is drawn: panels of series with intervals, axes with units, and guides."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from typing import Literal

Scale = Literal["linear", "log", "log2"]
Interval = tuple[float, float] | None
Ticks = tuple[tuple[float, str], ...]
Place = Literal["points", "ends", "legend", "none"]
FRONT = "Pareto front"
"""Label of the guide through the methods that no other beats; captions say what it is."""


@dataclasses.dataclass(frozen=True)
class Axis:
    """One axis.

    Attributes:
        label: with the unit.
        scale: linear, or logarithmic with ticks at powers of 10 or 2.
        ticks: positions and texts; chosen from the data when empty.
    """

    label: str
    scale: Scale = "linear"
    ticks: Ticks = ()


@dataclasses.dataclass(frozen=True)
class Series:
    """Points of one method, or of one method's control.

    Attributes:
        label: the display name of the method, or what the points are.
        method: registered name, or the control, which decides colour and marker; empty where neither is known.
        x: of the points.
        y: of the points.
        intervals: 95 % interval of every point, None where there is none; empty without any.
        along: the axis of the intervals.
        line: whether a line joins the points.
        notes: texts beside the points; empty without any.
        sizes: of the markers, 1 is the usual one; empty for all 1.
        form: the method as in tables, which decides the marker; empty for the method without settings.
        quiet: whether it is drawn in grey, without a label and intervals.
    """

    label: str
    method: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    intervals: tuple[Interval, ...] = ()
    along: Literal["x", "y"] = "y"
    line: bool = False
    notes: tuple[str, ...] = ()
    sizes: tuple[float, ...] = ()
    form: str = ""
    quiet: bool = False


@dataclasses.dataclass(frozen=True)
class Guide:
    """A line that is no result: a front, a diagonal, a zero.

    Attributes:
        label: what it is; empty for a line that explains itself.
        kind: `steps` is a front, `level` a horizontal line at y[0], `upright` a vertical line at x[0], `equal` y = x.
        x: of its corners.
        y: of its corners.
    """

    label: str
    kind: Literal["steps", "level", "upright", "equal"]
    x: tuple[float, ...] = ()
    y: tuple[float, ...] = ()


@dataclasses.dataclass(frozen=True)
class Panel:
    """One pair of axes.

    Attributes:
        x: axis.
        y: axis.
        series: in the order of the legend.
        guides: behind the series.
        dodge: whether series are drawn side by side, so that their intervals do not overlap.
        labels: where those of the series stand: beside points, at the ends of lines, in a legend, or in another panel.
    """

    x: Axis
    y: Axis
    series: tuple[Series, ...]
    guides: tuple[Guide, ...] = ()
    dodge: bool = False
    labels: Place = "legend"


@dataclasses.dataclass(frozen=True)
class Picture:
    """Panels below each other, with what they show in words.

    Attributes:
        panels: from above.
        caption: at most two sentences and a legend.
        notes: what else there is to know.
    """

    panels: tuple[Panel, ...]
    caption: str
    notes: str = ""

    @property
    def digest(self) -> str:
        """sha256 of everything that is drawn, with numbers to twelve digits; stored in the files of pictures."""
        text = json.dumps(_rounded(dataclasses.asdict(self)), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def front(points: Sequence[tuple[float, float]], higher: bool) -> list[int]:
    """The points that no other beats: none costs as little or less and is better, or costs less and is as good.

    Args:
        points: cost and quality.
        higher: whether a higher quality is better.

    Returns:
        Their numbers, by cost.
    """
    sign = 1.0 if higher else -1.0
    ranked = sorted(range(len(points)), key=lambda n: (points[n][0], -sign * points[n][1]))
    best: list[int] = []
    for number in ranked:
        if not best or sign * points[number][1] > sign * points[best[-1]][1]:
            best.append(number)
    return best


def _rounded(value: object) -> object:
    if isinstance(value, float):
        return f"{value:.12g}"
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(one) for one in value]
    return value
