from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from contextlab.errors import UserError
from contextlab.reports.plots.picture import FRONT, Axis, Guide, Panel, Picture, Series

pytest.importorskip("matplotlib")

from matplotlib.collections import LineCollection

from contextlab.reports.plots import draw, panels, style
from contextlab.reports.plots.panels import ROOM, shift


def several(count: int = 3, **changes: Any) -> Picture:
    names = [*style.LOOKS][:count]
    series = tuple(
        Series(name, name, (1.0, 2.0), (n + 0.5, n + 1.0), ((n, n + 1), None), line=True)
        for n, name in enumerate(names)
    )
    panel = {"x": Axis("TFLOPs per example"), "y": Axis("accuracy"), "series": series} | changes
    return Picture((Panel(**panel),), "caption")


def lines_of(picture: Picture) -> dict[str, tuple[list[float], list[float]]]:
    """The labelled lines of the first axes."""
    axes = draw.figure(picture).axes[0]
    return {str(line.get_label()): ([*line.get_xdata()], [*line.get_ydata()]) for line in axes.get_lines()}


def test_what_is_drawn_is_what_the_picture_holds() -> None:
    picture = several()
    drawn = lines_of(picture)
    for series in picture.panels[0].series:
        assert drawn[series.label] == ([*series.x], [*series.y])


def test_intervals_are_drawn_from_their_lower_to_their_upper_end() -> None:
    axes = draw.figure(several(1)).axes[0]
    (bar,) = [collection for collection in axes.collections if isinstance(collection, LineCollection)]
    assert [[float(y) for _, y in segment] for segment in bar.get_segments()] == [[0.0, 1.0]]


def test_an_interval_that_does_not_hold_its_value_is_drawn_all_the_same() -> None:
    series = Series("full", "full", (1.0,), (0.5,), ((0.6, 0.9),))
    axes = draw.figure(several(series=(series,))).axes[0]
    (bar,) = [collection for collection in axes.collections if isinstance(collection, LineCollection)]
    assert [float(y) for _, y in bar.get_segments()[0]] == pytest.approx([0.6, 0.9])


def test_side_by_side_keeps_the_heights_and_the_order() -> None:
    ticks = ((1.0, "a"), (2.0, "b"))
    drawn = lines_of(several(x=Axis("bins", ticks=ticks), dodge=True))
    xs = [drawn[name][0][0] for name in list(style.LOOKS)[:3]]
    assert xs == sorted(xs)
    assert all(abs(x - 1.0) < 0.4 for x in xs)
    assert drawn["full"][1] == [0.5, 1.0]


@pytest.mark.parametrize("suffix", draw.FORMATS)
def test_the_same_picture_is_the_same_file_and_holds_its_digest(tmp_path: Path, suffix: str) -> None:
    picture = several(guides=(Guide(FRONT, "steps", (1.0, 2.0), (0.5, 0.5)),))
    flat, deep = tmp_path / f"one{suffix}", tmp_path / "deep" / f"two{suffix}"
    draw.save(picture, flat)
    draw.save(picture, deep)
    assert flat.read_bytes() == deep.read_bytes()
    assert picture.digest.encode() in flat.read_bytes()


def test_fonts_are_embedded_as_they_are_and_can_be_read_on_a_phone(tmp_path: Path) -> None:
    draw.save(several(), tmp_path / "one.pdf")
    content = (tmp_path / "one.pdf").read_bytes()
    assert b"/FontFile2" in content
    assert b"/Type3" not in content
    fig = draw.figure(several(labels="points"))
    texts = [text for axes in fig.axes for text in (*axes.get_xticklabels(), axes.xaxis.label, axes.yaxis.label)]
    texts += fig.texts
    assert len(fig.texts) == 3
    # On a screen 360 pixels wide all letters are 10 pixels high, and in a column of 3.25 inches 6.5 points.
    assert all(text.get_fontsize() / 72 / style.INCHES * 360 >= 10 for text in texts)


@pytest.mark.parametrize("count", [1, 2, 5, 12])
@pytest.mark.parametrize("labels", ["points", "ends", "legend"])
def test_the_picture_holds_everything_and_no_two_labels_overlap(count: int, labels: Any) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    fig = draw.figure(several(count, labels=labels))
    canvas = FigureCanvasAgg(fig)
    canvas.draw()
    assert fig.get_size_inches()[0] == style.INCHES
    edges = fig.bbox
    named = [*fig.legends, *fig.texts]
    for part in (*named, *(axes.xaxis.label for axes in fig.axes), *(axes.yaxis.label for axes in fig.axes)):
        box = part.get_window_extent(canvas.get_renderer())
        assert box.x0 >= edges.x0 - 1
        assert box.x1 <= edges.x1 + 1
        assert box.y0 >= edges.y0 - 1
    boxes = [text.get_window_extent(canvas.get_renderer()) for text in fig.texts]
    assert not [(a, b) for n, a in enumerate(boxes) for b in boxes[:n] if a.overlaps(b)]
    (axes,) = fig.axes
    assert axes.get_window_extent().height > fig.bbox.height * 0.5


@pytest.mark.parametrize("labels", ["points", "ends"])
def test_labels_do_not_overlap_where_all_points_are_one(labels: Any) -> None:
    series = tuple(Series(f"a method, form {n}", "evalm", (1.0,), (2.0,), form=f"evalm-{n}") for n in range(8))
    fig = draw.figure(several(series=series, labels=labels))
    boxes = [text.get_window_extent() for text in fig.texts]
    assert len(boxes) == 8
    assert not [(a, b) for n, a in enumerate(boxes) for b in boxes[:n] if a.overlaps(b)]


def test_a_grey_series_has_no_name_and_no_interval() -> None:
    quiet = Series("m", "full", (1.0,), (1.0,), ((0.0, 2.0),), quiet=True)
    named = Series("n", "window", (2.0,), (1.0,))
    fig = draw.figure(several(series=(quiet, named), labels="points"))
    assert [text.get_text() for text in fig.texts] == ["n"]
    assert not [collection for collection in fig.axes[0].collections if isinstance(collection, LineCollection)]


@pytest.mark.parametrize("count", [1, 3, 8, 20, 40])
def test_series_side_by_side_stay_with_their_bin(count: int) -> None:
    shifts = [shift(number, count) for number in range(count)]
    assert max(map(abs, shifts)) <= ROOM / 2
    assert shifts == sorted(shifts)
    assert shifts == pytest.approx([-distance for distance in reversed(shifts)])


def test_long_names_are_broken_and_stay_on_the_page() -> None:
    long = "a-method-from-a-package(" + ",".join(f"setting_{n}=value" for n in range(8)) + ")"
    first, second = (Series(f"{long}{n}", "mine", (1.0,), (1.0,)) for n in range(2))
    fig = draw.figure(several(series=(first, second)))
    assert all(len(line) < 70 for text in fig.legends[0].get_texts() for line in text.get_text().splitlines())


LONG = "longmem(reduction=1,memory_layers=10-29,softmax=joint,local=sliding,init=difference,rank={}), trained"


def test_long_names_at_ends_and_ticks_do_not_overlap() -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    series = tuple(Series(LONG.format(n), "longmem", (1.0, 2.0), (1.0, n / 100), line=True) for n in range(8))
    ends = draw.figure(several(series=series, labels="ends"))
    ticks = tuple((float(-n), LONG.format(n)) for n in range(8))
    gains = Series("own - wrong", "own - wrong", (0.1,) * 8, tuple(float(-n) for n in range(8)), along="x")
    rows = draw.figure(
        several(series=(gains,), x=Axis("gain in nats per token beyond a wrong one"), y=Axis("", ticks=ticks))
    )
    for fig, texts in ((ends, ends.texts), (rows, rows.axes[0].get_yticklabels())):
        canvas = FigureCanvasAgg(fig)
        canvas.draw()
        boxes = [text.get_window_extent(canvas.get_renderer()) for text in (*texts, fig.axes[0].xaxis.label)]
        assert len(boxes) == 9
        assert not [(a, b) for n, a in enumerate(boxes) for b in boxes[:n] if a.overlaps(b)]
        assert all(box.x0 >= -1 and box.x1 <= fig.bbox.x1 + 1 and box.y0 >= -1 for box in boxes)
        assert all(box.y1 <= fig.bbox.y1 + 1 for box in boxes)


def test_a_long_axis_is_broken_and_a_short_one_is_not() -> None:
    assert panels.axis_label("accuracy (higher is better)") == "accuracy (higher is better)"
    long = panels.axis_label("nats per token - window, rank 16, all of the books (lower is better)")
    assert long.splitlines()[-1] == "(lower is better)"
    assert max(map(len, long.splitlines())) <= panels.LETTERS


def test_scales_and_their_ticks() -> None:
    wide = Series("full", "full", (2.0, 4096.0), (0.01, 10.0))
    axes = draw.figure(several(series=(wide,), x=Axis("questions", "log2"), y=Axis("cost", "log"))).axes[0]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert axes.xaxis.get_major_formatter()(4096, None) == "4k"
    assert axes.yaxis.get_major_formatter()(0.01, None) == "0.01"


def test_a_diagonal_has_one_unit_on_both_axes() -> None:
    cloud = Series("full", "full", (0.0, 1.0), (1.0, 1.0), notes=("9", "1"), sizes=(3.0, 1.0))
    axes = draw.figure(several(series=(cloud,), guides=(Guide("", "equal"),))).axes[0]
    assert axes.get_xlim() == axes.get_ylim()
    assert axes.get_aspect() == 1.0
    assert [text.get_text() for text in axes.texts] == ["9", "1"]


def test_what_a_user_set_for_matplotlib_changes_nothing(tmp_path: Path) -> None:
    import matplotlib

    draw.save(several(), tmp_path / "plain.svg")
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "lines.linewidth": 9}):
        draw.save(several(), tmp_path / "changed.svg")
    assert (tmp_path / "plain.svg").read_bytes() == (tmp_path / "changed.svg").read_bytes()


def test_mistakes_are_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=re.escape(".pdf, .png, .svg")):
        draw.save(several(), tmp_path / "picture.gif")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="choose another file with -o"):
        draw.save(several(), tmp_path / "file" / "one.png")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError, match=re.escape("pip install 'contextlab[plots]'")):
        draw.save(several(), tmp_path / "one.png")
