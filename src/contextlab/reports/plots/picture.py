"""The content of a picture before it is drawn: panels of series with intervals, axes with units, and guides."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from typing import Any, Literal

import pandas

from contextlab.reports.filters import LeftOut
from contextlab.reports.plots.observed import clusters_of, runs_of

AxisScale = Literal["linear", "log", "log2"]
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
    scale: AxisScale = "linear"
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
        guides: drawn below the series.
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
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return value


INTERVALS = "95 % intervals"
STAIR = "dashed: no other method is better and costs as little"


def data_of(rows: pandas.DataFrame) -> str:
    """How many examples of which tasks with which model; tasks with the same data are said together."""
    tasks: dict[str, list[str]] = {}
    for row in runs_of(rows):
        tasks.setdefault(f"{row.note}, {row.source}", []).append(row.task)
    about = "; ".join(f"{', '.join(dict.fromkeys(of))} ({data})" for data, of in tasks.items())
    return f"{count_of(rows)} of {about}, {rows['backbone'].iloc[0]}"


def count_of(rows: pandas.DataFrame) -> str:
    """`n = 22 examples`, or `n = 48 in 6 examples` where an example has several questions."""
    counts, examples = sorted(set(rows["n"].dropna())), sorted(set(rows["examples"]))
    words = _range(examples) + (" example" if examples == [1] else " examples")
    return f"n = {words}" if counts == examples or not counts else f"n = {_range(counts)} in {words}"


def bars_of(rows: pandas.DataFrame, intervals: bool, paired: bool) -> str:
    """The meaning of the bars; empty without bars."""
    if not intervals:
        return ""
    clusters = [clusters_of(row) for row in runs_of(rows.drop_duplicates(["task", "examples"]))]
    counts = sorted({count for count, _ in clusters if count})
    over = f" over {_range(counts)} {clusters[0][1]}" if counts else ""
    return f"bars: {INTERVALS}{' of paired differences' if paired else ''}{over}"


def grey_of(labels: Sequence[str]) -> str:
    """How many series are grey; empty for none."""
    return f"grey: {len(labels)} further method{'s' * (len(labels) > 1)}" if labels else ""


def caption(sentences: Sequence[str], legend: Sequence[str], left_out: LeftOut) -> str:
    """At most two sentences, and a legend that ends with the runs that are not drawn; empty parts are not said."""
    missing = left_out.sentence
    parts = [part for part in (*legend, missing[:1].lower() + missing[1:]) if part]
    ends = [f"{_upper(sentence)}." for sentence in sentences if sentence]
    return " ".join([*ends, *([f"{_upper('; '.join(parts))}."] if parts else [])])


def notes(rows: pandas.DataFrame, grey: Sequence[str] = (), *more: str) -> str:
    """Under which circumstances runs were made, and the names of grey series."""
    first: Any = rows.iloc[0]
    common = f"Context {first.context}, backbone {first.backbone}, dtype {first['dtype']}, seed {first.seed}."
    names = [f"Grey: {'; '.join(grey)}."] if grey else []
    return " ".join([common, *names, *more])


def _range(numbers: Sequence[int]) -> str:
    return f"{numbers[0]:,}" if len(numbers) == 1 else f"{numbers[0]:,} to {numbers[-1]:,}"


def _upper(words: str) -> str:
    return words[0].upper() + words[1:]
