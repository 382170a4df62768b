"""Draws pictures with matplotlib: for a column of a paper, a page or a phone, the same bytes every time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contextlab import files
from contextlab.errors import UserError
from contextlab.reports.plots import naming, style
from contextlab.reports.plots.panels import TICK, draw_panel, has_diagonal
from contextlab.reports.plots.picture import Panel, Picture
from contextlab.reports.plots.style import lines_of, width_for

if TYPE_CHECKING:
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
    "axes.linewidth": 1.0,
    "axes.formatter.use_mathtext": True,
    "lines.linewidth": 1.8,
    "lines.markersize": 9.0,
    "grid.linewidth": 0.5,
    "grid.color": "#dddddd",
    "errorbar.capsize": 3.0,
    # Type 42 embeds the fonts as they are, which journals ask for.
    "pdf.fonttype": 42,
    "ps.fonttype": 42,
    "svg.fonttype": "path",
    "svg.hashsalt": "contextlab",
    "savefig.dpi": 150,
}
HEIGHT, LOW_HEIGHT = 4.2, 2.4
"""Inches of a panel: alone, and with another one below."""
LINE, ROW, FOOT = 0.19, 0.23, 0.9
"""Inches of a line of a label, of one with space around it, and of an axis below them."""


def figure(picture: Picture) -> Figure:
    """A figure of a picture.

    Raises:
        UserError: when matplotlib is not installed.
    """
    matplotlib = _matplotlib()
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **SETTINGS}):
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine

        looks = _looks(picture)
        panels = picture.panels
        heights = [_height(panel, len(panels)) for panel in panels]
        layout = ConstrainedLayoutEngine(w_pad=0.05, h_pad=0.05)
        fig = Figure(figsize=(style.INCHES, sum(heights)), layout=layout, facecolor="white")
        axes = list(fig.subplots(len(panels), 1, sharex=len(panels) > 1, squeeze=False, height_ratios=heights)[:, 0])
        for axis, panel in zip(axes, panels, strict=True):
            draw_panel(axis, panel, looks)
        for axis in axes[:-1]:
            axis.set_xlabel("")
        naming.name(fig, axes, panels, looks)
    return fig


def save(picture: Picture, path: Path) -> None:
    """Write a picture as PDF, PNG or SVG, by the name of the file; the file says what is drawn and its digest.

    Raises:
        UserError: for another kind of file, or when it cannot be written, or matplotlib is not installed.
    """
    check_format(path)
    matplotlib = _matplotlib()
    fig = figure(picture)
    kind = path.suffix.lower()
    program = f"contextlab with matplotlib {matplotlib.__version__}"
    # Without these a file has the time at which it was made.
    metadata: dict[str, dict[str, Any]] = {
        ".pdf": {"Creator": program, "Producer": None, "CreationDate": None, "Subject": picture.digest},
        ".png": {"Software": program, "Description": picture.digest},
        ".svg": {"Creator": program, "Date": None, "Description": picture.digest},
    }
    with files.writing(path, "choose another file with -o"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with matplotlib.rc_context({**matplotlib.rcParamsDefault, **SETTINGS}), files.replacing(path) as fresh:
            fig.savefig(fresh, format=kind.removeprefix("."), metadata=metadata[kind])


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


def _looks(picture: Picture) -> Mapping[str, style.Look]:
    """The look of every label that is not grey; one of several panels is one series."""
    shown = {
        series.label: (series.method or series.label, series.form)
        for panel in picture.panels
        for series in panel.series
        if not series.quiet
    }
    return dict(zip(shown, style.looks(shown.values()), strict=True))


def _height(panel: Panel, count: int) -> float:
    """Inches of a panel: with room for its labels one below the other, and square where it has a diagonal."""
    if has_diagonal(panel):
        return style.INCHES - 0.5
    if panel.y.ticks:
        # Ticks stand at equal distances, so that the longest decides.
        return FOOT + ROW * max(2, *_counts([text for _, text in panel.y.ticks], TICK)) * len(panel.y.ticks)
    labels = [series.label for series in panel.series if not series.quiet and panel.labels == "ends"]
    column = sum(LINE * lines + naming.BETWEEN for lines in _counts(labels, naming.BROAD))
    return max(HEIGHT if count == 1 else LOW_HEIGHT, column + 0.3 * (count == 1))


def _counts(texts: Sequence[str], widths: Sequence[int]) -> list[int]:
    """How many lines every text has."""
    width = width_for(texts, widths)
    return [len(lines_of(text, width)) for text in texts]
