"""Writes the names of series into a figure: beside their points, at the ends of their lines, or as a legend."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from contextlab.reports.plots import style
from contextlab.reports.plots.panels import marker_of
from contextlab.reports.plots.picture import Panel
from contextlab.reports.plots.placing import Box, beside, spread, within
from contextlab.reports.plots.style import broken, width_for

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

BROAD, WIDE = (20, 26), 56
"""Letters of a line of a label beside what it names, more where it is long, and of a legend."""
GAP, MARK = 0.1, 0.3
"""Inches between lines and the column of labels, and of the marker before a label."""
BETWEEN = 0.04
"""Inches between two labels."""
THIN = 0.04
"""Inches on either side of a line, and around a grey point, that labels had better not cover."""
FAR = 0.15
"""A label that stands farther from its point, in inches, is joined with it."""


def name(fig: Figure, axes: Sequence[Axes], panels: Sequence[Panel], looks: Mapping[str, style.Look]) -> None:
    """Write the names of all series that are not grey, and fix the places of all axes."""
    both = list(zip(axes, panels, strict=True))
    _legend(fig, [axis for axis, panel in both if panel.labels == "legend"])
    texts = {id(axis): _texts(panel) for axis, panel in both if panel.labels in ("ends", "points")}
    ends = [words for axis, panel in both if panel.labels == "ends" for words in texts[id(axis)].values()]
    # The layout leaves a column free on the right, and does not move anything once labels have their places.
    column = GAP + MARK + max((_size(fig, words)[0] for words in ends), default=0.0) if ends else 0.0
    layout: Any = fig.get_layout_engine()
    layout.set(rect=(0.0, 0.0, 1.0 - column / style.INCHES, 1.0))
    fig.draw_without_rendering()
    fig.set_layout_engine("none")
    for axis, panel in both:
        if panel.labels == "ends":
            _at_ends(fig, axis, texts[id(axis)], looks)
        elif panel.labels == "points":
            _beside_points(fig, axis, texts[id(axis)])


def _texts(panel: Panel) -> dict[str, str]:
    """The labels of a panel's series, in several lines where they are long."""
    labels = [drawn.label for drawn in panel.series if not drawn.quiet]
    width = width_for(labels, BROAD)
    return {label: broken(label, width) for label in labels}


def _at_ends(fig: Figure, axis: Axes, texts: Mapping[str, str], looks: Mapping[str, style.Look]) -> None:
    """One column on the right, with a line from the end of each series to its marker and name."""
    lines = {label: line for label, line in _lines(axis).items() if label in texts}
    ends = [_inches(fig, axis, *_way(line)[-1]) for line in lines.values()]
    heights = [_size(fig, texts[label])[1] + BETWEEN for label in lines]
    box = _box(fig, axis)
    middles = within(spread([y for _, y in ends], heights), heights, box.low - 0.35, fig.get_size_inches()[1])
    left = box.right + GAP
    for (label, line), (x, y), middle in zip(lines.items(), ends, middles, strict=True):
        _draw_line(fig, (x, left + MARK / 2), (y, middle))
        mark: dict[str, Any] = marker_of(looks[label]) | {"linestyle": "", "transform": fig.dpi_scale_trans}
        _add(fig, [left + MARK / 2], [middle], **mark, markersize=line.get_markersize())
        _write(fig, left + MARK, middle, texts[label])


def _beside_points(fig: Figure, axis: Axes, texts: Mapping[str, str]) -> None:
    lines = {label: line for label, line in _lines(axis).items() if label in texts}
    points = [_inches(fig, axis, *_way(line)[0]) for line in lines.values()]
    half = 0.5 * style.POINTS / 72 * 0.75
    marks = [Box(x - half, y - half, x + half, y + half) for x, y in points]
    sizes = [(w, h + BETWEEN) for w, h in (_size(fig, texts[label]) for label in lines)]
    edges = _box(fig, axis)
    room = Box(edges.left + BETWEEN, edges.low + BETWEEN, edges.right, edges.high)
    boxes = beside(points, sizes, marks, _bars(fig, axis), room)
    for label, (x, y), box in zip(lines, points, boxes, strict=True):
        end_x, end_y = box.nearest(x, y)
        if math.hypot(end_x - x, end_y - y) > FAR:
            _draw_line(fig, (x, end_x), (y, end_y))
        _write(fig, box.left, (box.low + box.high) / 2, texts[label])


def _legend(fig: Figure, axes: Sequence[Axes]) -> None:
    entries: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    if len(entries) > 1:
        labels = [broken(label, WIDE) for label in entries]
        columns = max(1, min(WIDE // (max(map(len, entries)) + 5), 3))
        fig.legend(
            entries.values(), labels, loc="outside lower center", ncols=columns, frameon=False, borderpad=0.1,
            handlelength=2.0, columnspacing=1.2, labelspacing=0.25,
        )  # fmt: skip


def _lines(axis: Axes) -> dict[str, Line2D]:
    """The lines that have a label of a series."""
    return {str(line.get_label()): line for line in axis.get_lines() if not str(line.get_label()).startswith("_")}


def _way(line: Line2D) -> list[tuple[float, float]]:
    """The points of a line in the units of its axes."""
    points: Any = line.get_xydata()
    return [(float(x), float(y)) for x, y in points]


def _bars(fig: Figure, axis: Axes) -> list[Box]:
    """Intervals, lines without a name, and grey points, as narrow boxes."""
    from matplotlib.collections import LineCollection

    collections = [lines for lines in axis.collections if isinstance(lines, LineCollection)]
    bars = [[(float(x), float(y)) for x, y in segment] for lines in collections for segment in lines.get_segments()]
    ways = [_way(line) for line in axis.get_lines() if str(line.get_label()).startswith("_")]
    pairs = [(way[0], way[0]) for way in ways if len(way) == 1]
    pairs += [pair for way in (*bars, *(curve for curve in ways if len(curve) > 2)) for pair in pairwise(way)]
    return [_around_line(_inches(fig, axis, *start), _inches(fig, axis, *other)) for start, other in pairs]


def _around_line(start: tuple[float, float], other: tuple[float, float]) -> Box:
    low, high = [tuple(map(choose, start, other)) for choose in (min, max)]
    return Box(low[0] - THIN, low[1] - THIN, high[0] + THIN, high[1] + THIN)


def _inches(fig: Figure, axis: Axes, x: float, y: float) -> tuple[float, float]:
    """A place on an axis in inches of the figure."""
    at_x, at_y = axis.transData.transform((x, y)) / fig.dpi
    return float(at_x), float(at_y)


def _box(fig: Figure, axis: Axes) -> Box:
    edges = axis.get_window_extent()
    return Box(*(float(edge) / fig.dpi for edge in (edges.x0, edges.y0, edges.x1, edges.y1)))


def _size(fig: Figure, words: str) -> tuple[float, float]:
    """Width and height of a text in inches."""
    text = fig.text(0, 0, words, fontsize=style.SMALL, linespacing=1.0)
    edges = text.get_window_extent()
    text.remove()
    return float(edges.width) / fig.dpi, float(edges.height) / fig.dpi


def _write(fig: Figure, left: float, middle: float, words: str) -> None:
    look: dict[str, Any] = {"fontsize": style.SMALL, "linespacing": 1.0, "zorder": 6, "va": "center"}
    look["bbox"] = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.5}
    fig.text(left, middle, words, transform=fig.dpi_scale_trans, **look)


def _draw_line(fig: Figure, x: tuple[float, float], y: tuple[float, float]) -> None:
    _add(fig, x, y, color=style.PALE, linewidth=0.8, transform=fig.dpi_scale_trans)


def _add(fig: Figure, x: Sequence[float], y: Sequence[float], **look: Any) -> None:
    from matplotlib.lines import Line2D

    fig.add_artist(Line2D(x, y, **look))
