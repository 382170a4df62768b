"""Draws the axes, guides and series of one panel."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from contextlab.reports.plots import style
from contextlab.reports.plots.picture import Axis, Guide, Panel, Series, Ticks
from contextlab.reports.plots.style import broken, width_for

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DODGE, ROOM = 0.09, 0.6
"""Between series side by side on an axis of whole numbers, and at most between the first and the last one."""
OCTAVES = 0.3
"""The same on a logarithmic axis, as a share of these."""
MARKERS = 10
"""Of a line, about, when it has more points."""
LETTERS, FEW = 34, 24
"""Of a label along an axis, which is broken when it is longer; the second along one beside long names."""
TICK, MANY = (22, 28, 34), 3
"""Letters of a line of a tick's text, more where it is long, and ticks along an axis with texts in one line."""
MARGIN = 0.12
"""Free of points at the ends of an axis, as a share of it, where labels stand beside points."""


def draw_panel(axes: Axes, panel: Panel, looks: Mapping[str, style.Look]) -> None:
    """Draw everything of a panel but the labels of its series."""
    axes.grid(True, which="major", zorder=0)
    _scale(axes, panel)
    for guide in panel.guides:
        _guide(axes, guide)
    shown = [series for series in panel.series if not series.quiet]
    for series in panel.series:
        if series.quiet:
            _quiet(axes, series)
    for number, series in enumerate(shown):
        _series(axes, series, looks[series.label], panel, shift(number, len(shown)) if panel.dodge else 0.0)
    axes.set_xlabel(axis_label(panel.x.label, FEW if panel.y.ticks else LETTERS))
    axes.set_ylabel(axis_label(panel.y.label))
    if panel.labels == "points":
        axes.margins(MARGIN)
    if has_diagonal(panel):
        _equal(axes)


def has_diagonal(panel: Panel) -> bool:
    """Whether both axes of a panel have the same unit and ends."""
    return any(guide.kind == "equal" for guide in panel.guides)


def shift(number: int, count: int) -> float:
    """Where a series stands beside the others on an axis of whole numbers, nearer to its own than to the next one."""
    step = min(DODGE, ROOM / max(count - 1, 1))
    return step * (number - (count - 1) / 2)


def thousands(value: float) -> str:
    """A power of two as `512` or `4k`."""
    return f"{value / 1024:g}k" if value >= 1024 else f"{value:g}"


def axis_label(label: str, width: int = LETTERS) -> str:
    """A label in several lines when it is longer than the axis, the last one in brackets."""
    if len(label) <= width:
        return label
    words, mark, bracket = label.rpartition(" (")
    # The brackets of a name are no direction.
    if not mark or not bracket.endswith("better)"):
        return broken(label, width)
    return "\n".join([broken(words, width), f"({bracket}"])


def _ticks(ticks: Ticks, along: bool) -> tuple[list[float], list[str]]:
    """Places and texts of ticks; where there are many along the picture, a range stands in two lines."""
    width = width_for((text for _, text in ticks), TICK)
    texts = [broken(text, width) for _, text in ticks]
    if along and len(ticks) > MANY:
        texts = [text.replace("\N{EN DASH}", "\N{EN DASH}\n").replace(" on", "\non") for text in texts]
    return [at for at, _ in ticks], texts


def _scale(axes: Axes, panel: Panel) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    for axis, about, set_scale, margin in (
        (axes.xaxis, panel.x, axes.set_xscale, axes.set_xlim),
        (axes.yaxis, panel.y, axes.set_yscale, axes.set_ylim),
    ):
        if about.scale != "linear":
            set_scale("log", base=2 if about.scale == "log2" else 10)
        if about.scale == "log2":
            axis.set_major_formatter(FuncFormatter(lambda value, _: thousands(value)))
        elif about.scale == "log":
            axis.set_major_locator(LogLocator(subs=(1.0,) if _decades(about, panel) > 2 else (1.0, 2.0, 5.0)))
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axis.set_minor_formatter(NullFormatter())
        elif about.scale == "linear" and not about.ticks:
            axis.set_major_locator(MaxNLocator(5))
        if about.label.startswith("tokens") and about.scale == "linear":
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / 1000:g}k" if value else "0"))
        if about.ticks:
            axis.set_ticks(*_ticks(about.ticks, axis is axes.xaxis))
            ends = [at for at, _ in about.ticks]
            margin(min(ends) - 0.5, max(ends) + 0.5)


def _decades(axis: Axis, panel: Panel) -> float:
    """Powers of ten that the points of an axis span."""
    values = [value for series in panel.series for value in (series.x if axis is panel.x else series.y)]
    return math.log10(max(values) / min(values))


def _moved(values: Sequence[float], by: float, axis: Axis) -> list[float]:
    if axis.scale != "linear":
        return [value * 2.0 ** (by * OCTAVES) for value in values]
    return [value + by * bool(axis.ticks) for value in values]


def _quiet(axes: Axes, series: Series) -> None:
    """A series that is there for comparison only."""
    look: dict[str, Any] = {"color": style.PALE, "marker": "" if series.line else ".", "zorder": 2, "linewidth": 1.0}
    axes.plot(series.x, series.y, linestyle="-" if series.line else "", **look)


def _series(axes: Axes, series: Series, look: style.Look, panel: Panel, by: float) -> None:
    # Side by side along the axis that has no intervals; negative, so that the first series is at the top.
    x = _moved(series.x, by, panel.x) if series.along == "y" else list(series.x)
    y = _moved(series.y, -by, panel.y) if series.along == "x" else list(series.y)
    for at_x, at_y, interval in zip(x, y, series.intervals, strict=False):
        if interval is not None:
            low, high = interval
            # From its middle: an interval that is corrected for skewness need not hold its value.
            middle, half = (low + high) / 2, abs(high - low) / 2
            bar: dict[str, Any] = (
                {"x": at_x, "y": middle, "yerr": half}
                if series.along == "y"
                else {"x": middle, "y": at_y, "xerr": half}
            )
            axes.errorbar(**bar, fmt="none", ecolor=look.colour, elinewidth=1.2, zorder=3)
    marker = marker_of(look)
    if series.sizes:
        for at_x, at_y, size in zip(x, y, series.sizes, strict=True):
            axes.plot([at_x], [at_y], **marker, linestyle="", markersize=_diameter(size), zorder=4, clip_on=False)
        axes.plot([], [], **marker, linestyle="", label=series.label)
    else:
        every = max(1, len(x) // MARKERS)
        axes.plot(
            x, y, **marker, linestyle=look.line if series.line else "", label=series.label, markevery=every, zorder=4
        )
    for at_x, at_y, note, size in zip(x, y, series.notes, series.sizes, strict=False):
        beside = (_diameter(size) / 2 + 4, 5)
        axes.annotate(note, (at_x, at_y), beside, textcoords="offset points", fontsize=style.SMALL, zorder=5)


def marker_of(look: style.Look) -> dict[str, Any]:
    """Colour and marker of a look, as matplotlib names them."""
    marker = style.POLYGONS.get(look.marker, look.marker)
    return {
        "color": look.colour,
        "marker": marker,
        "markerfacecolor": look.colour if look.fill == "full" else "white",
        "markeredgewidth": 1.3,
    }


def _diameter(size: float) -> float:
    """Of a marker that stands for several points, in points of print."""
    return 6.0 * size + 3.0


def _guide(axes: Axes, guide: Guide) -> None:
    look: dict[str, Any] = {"color": style.GREY, "linewidth": 1.2, "zorder": 1}
    if guide.kind == "steps":
        axes.plot(guide.x, guide.y, linestyle=(0, (4, 2)), **look)
    elif guide.kind == "level":
        axes.axhline(guide.y[0], **look)
    elif guide.kind == "upright":
        axes.axvline(guide.x[0], linestyle=":" if guide.x[0] else "-", **look)


def _equal(axes: Axes) -> None:
    """The same unit and the same ends on both axes, and the diagonal."""
    low = min(axes.get_xlim()[0], axes.get_ylim()[0])
    high = max(axes.get_xlim()[1], axes.get_ylim()[1])
    axes.plot([low, high], [low, high], color=style.GREY, linewidth=1.2, zorder=1)
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    axes.set_aspect("equal")
