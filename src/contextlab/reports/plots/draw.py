"""Draws pictures with matplotlib: as wide as a column of a paper, with embedded fonts, the same bytes every time."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contextlab import files
from contextlab.errors import UserError
from contextlab.reports.plots import style
from contextlab.reports.plots.picture import FRONT, Axis, Guide, Panel, Picture, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".pdf", ".png", ".svg")
SETTINGS: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": style.POINTS,
    "axes.labelsize": style.POINTS,
    "xtick.labelsize": style.SMALL,
    "ytick.labelsize": style.SMALL,
    "legend.fontsize": style.SMALL,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.formatter.use_mathtext": True,
    "lines.linewidth": 1.0,
    "lines.markersize": 4.5,
    "grid.linewidth": 0.3,
    "grid.color": "#cccccc",
    "errorbar.capsize": 1.8,
    # Type 42 embeds the fonts as they are, which journals ask for.
    "pdf.fonttype": 42,
    "ps.fonttype": 42,
    "svg.fonttype": "path",
    "svg.hashsalt": "contextlab",
    "savefig.dpi": 200,
}
HEIGHT, LOW_HEIGHT = 2.3, 1.25
"""Inches of a panel: alone, and with another one below."""
ROW = 0.15
"""Inches of a row of the legend."""
DODGE, OCTAVES = 0.07, 0.025
"""Between series side by side, on an axis of whole numbers and on a logarithmic one."""
MARKERS = 10
"""Of a line, about, when it has more points."""
LETTERS = 62
"""That fit beside each other in a legend."""


def figure(picture: Picture) -> Figure:
    """A figure of a picture.

    Raises:
        UserError: when matplotlib is not installed.
    """
    matplotlib = _matplotlib()
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **SETTINGS}):
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine

        methods, labels = _entries(picture)
        looks = dict(zip(labels, style.looks(methods), strict=True))
        guides = [guide.label for panel in picture.panels for guide in panel.guides if guide.label]
        columns, rows = _grid([*labels, *guides])
        panels = len(picture.panels)
        bare = HEIGHT if panels == 1 else LOW_HEIGHT * panels
        tall = max((len(panel.y.ticks) for panel in picture.panels), default=0)
        bare = max(bare, 0.6 + 0.28 * tall, style.INCHES - 0.4 if any(map(_has_diagonal, picture.panels)) else 0.0)
        layout = ConstrainedLayoutEngine(w_pad=0.03, h_pad=0.04)
        made = Figure(figsize=(style.INCHES, bare + rows * ROW), layout=layout, facecolor="white")
        axes = list(made.subplots(panels, 1, sharex=panels > 1, squeeze=False)[:, 0])
        for axis, panel in zip(axes, picture.panels, strict=True):
            _draw(axis, panel, looks)
        for axis in axes[:-1]:
            axis.set_xlabel("")
        _legend(made, axes, columns)
    return made


def save(picture: Picture, path: Path) -> None:
    """Write a picture as PDF, PNG or SVG, by the name of the file; the file says what is drawn and its digest.

    Raises:
        UserError: for another kind of file, or when it cannot be written, or matplotlib is not installed.
    """
    check_format(path)
    matplotlib = _matplotlib()
    made = figure(picture)
    kind = path.suffix.lower()
    program = f"contextlab with matplotlib {matplotlib.__version__}"
    # Without these a file has the time at which it was made.
    metadata: dict[str, dict[str, Any]] = {
        ".pdf": {"Creator": program, "Producer": None, "CreationDate": None, "Subject": picture.digest},
        ".png": {"Software": program, "Description": picture.digest},
        ".svg": {"Creator": program, "Date": None, "Description": picture.digest},
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with matplotlib.rc_context({**matplotlib.rcParamsDefault, **SETTINGS}), files.replacing(path) as fresh:
            made.savefig(fresh, format=kind.removeprefix("."), metadata=metadata[kind])
    except OSError as error:
        raise files.unwritable(path, error, "choose another file with -o") from None


def check_format(path: Path) -> None:
    """Refuse a file that is no picture.

    Raises:
        UserError: when its name ends otherwise.
    """
    if path.suffix.lower() not in FORMATS:
        raise UserError(f"{path} is no picture file: let its name end with {', '.join(FORMATS)}.")


def _matplotlib() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise UserError("matplotlib is not installed: run pip install 'contextlab[plots]'.") from None
    return matplotlib


def _entries(picture: Picture) -> tuple[list[str], list[str]]:
    """Methods and labels of all series, each label once, in their order."""
    pairs = {one.label: one.method or one.label for panel in picture.panels for one in panel.series}
    return list(pairs.values()), list(pairs)


def _draw(axes: Axes, panel: Panel, looks: Mapping[str, style.Look]) -> None:
    axes.grid(True, which="major", zorder=0)
    _scale(axes, panel)
    for guide in panel.guides:
        _guide(axes, guide)
    for number, one in enumerate(panel.series):
        shift = number - (len(panel.series) - 1) / 2 if panel.dodge else 0.0
        _series(axes, one, looks[one.label], panel, shift)
    axes.set_xlabel(panel.x.label)
    axes.set_ylabel(_broken(panel.y.label))
    if _has_diagonal(panel):
        _equal(axes)


def _broken(label: str) -> str:
    """A label in two lines, the second one in brackets, when it is longer than the axis."""
    return label if len(label) <= LETTERS // 2 else label.replace(" (", "\n(")


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
            axis.set_major_locator(MaxNLocator(6))
        if about.label.startswith("tokens") and about.scale == "linear":
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / 1000:g}k" if value else "0"))
        if about.ticks:
            axis.set_ticks([at for at, _ in about.ticks], [text for _, text in about.ticks])
            ends = [at for at, _ in about.ticks]
            margin(min(ends) - 0.5, max(ends) + 0.5)


def _decades(axis: Axis, panel: Panel) -> float:
    """Powers of ten that the points of an axis span."""
    values = [value for one in panel.series for value in (one.x if axis is panel.x else one.y)]
    return math.log10(max(values) / min(values))


def thousands(value: float) -> str:
    """A power of two as `512` or `4k`."""
    return f"{value / 1024:g}k" if value >= 1024 else f"{value:g}"


def _moved(values: Sequence[float], shift: float, axis: Axis) -> list[float]:
    return [
        value * 2.0 ** (shift * OCTAVES) if axis.scale != "linear" else value + shift * DODGE * bool(axis.ticks)
        for value in values
    ]


def _series(axes: Axes, one: Series, look: style.Look, panel: Panel, shift: float) -> None:
    # Side by side along the axis that has no intervals; negative, so that the first series is at the top.
    x = _moved(one.x, shift, panel.x) if one.along == "y" else list(one.x)
    y = _moved(one.y, -shift, panel.y) if one.along == "x" else list(one.y)
    for at_x, at_y, interval in zip(x, y, one.intervals, strict=False):
        if interval is not None:
            low, high = interval
            # From its middle: an interval that is corrected for skewness need not hold its value.
            middle, half = (low + high) / 2, abs(high - low) / 2
            bar: dict[str, Any] = (
                {"x": at_x, "y": middle, "yerr": half} if one.along == "y" else {"x": middle, "y": at_y, "xerr": half}
            )
            axes.errorbar(**bar, fmt="none", ecolor=look.colour, elinewidth=0.7, zorder=2)
    look_: dict[str, Any] = {
        "color": look.colour,
        "marker": look.marker,
        "fillstyle": look.fill,
        "markeredgewidth": 0.8,
    }
    if one.sizes:
        for at_x, at_y, size in zip(x, y, one.sizes, strict=True):
            axes.plot([at_x], [at_y], **look_, linestyle="", markersize=_diameter(size), zorder=3, clip_on=False)
        axes.plot([], [], **look_, linestyle="", label=one.label)
    else:
        every = max(1, len(x) // MARKERS)
        axes.plot(x, y, **look_, linestyle=look.line if one.line else "", label=one.label, markevery=every, zorder=3)
    for at_x, at_y, note, size in zip(x, y, one.notes, one.sizes, strict=False):
        beside = (_diameter(size) / 2 + 2, 3)
        axes.annotate(note, (at_x, at_y), beside, textcoords="offset points", fontsize=style.SMALL, zorder=4)


def _diameter(size: float) -> float:
    """Of a marker that stands for several points, in points of print."""
    return 3.0 * size + 1.5


def _guide(axes: Axes, guide: Guide) -> None:
    look: dict[str, Any] = {"color": style.GREY, "linewidth": 0.7, "zorder": 1}
    if guide.kind == "steps":
        axes.plot(guide.x, guide.y, linestyle=(0, (4, 2)), label=guide.label or None, **look)
    elif guide.kind == "level":
        axes.axhline(guide.y[0], **look)
    elif guide.kind == "upright":
        axes.axvline(guide.x[0], linestyle=":" if guide.x[0] else "-", **look)


def _has_diagonal(panel: Panel) -> bool:
    return any(guide.kind == "equal" for guide in panel.guides)


def _equal(axes: Axes) -> None:
    """The same unit and the same ends on both axes, and the diagonal."""
    low = min(axes.get_xlim()[0], axes.get_ylim()[0])
    high = max(axes.get_xlim()[1], axes.get_ylim()[1])
    axes.plot([low, high], [low, high], color=style.GREY, linewidth=0.7, zorder=1)
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    axes.set_aspect("equal")


def _grid(entries: Sequence[str]) -> tuple[int, int]:
    """Columns and rows of a legend."""
    if len(entries) < 2:
        return 1, 0
    longest = max(map(len, entries)) + 5
    columns = max(1, min(LETTERS // longest, 3))
    return columns, -(-len(entries) // columns)


def _legend(made: Figure, axes: Sequence[Axes], columns: int) -> None:
    entries: dict[str, Any] = {}
    for one in axes:
        for handle, label in zip(*one.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    # The dashes of a front come after the methods.
    entries = dict(sorted(entries.items(), key=lambda entry: entry[0] == FRONT))
    if len(entries) > 1:
        labels = [textwrap.fill(label, LETTERS - 6) for label in entries]
        made.legend(
            entries.values(),
            labels,
            loc="outside lower center",
            ncols=columns,
            frameon=False,
            handlelength=2.2,
            columnspacing=1.0,
            borderpad=0.1,
            labelspacing=0.25,
        )
