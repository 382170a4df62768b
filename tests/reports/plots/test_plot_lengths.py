from __future__ import annotations

from pathlib import Path

import pytest
from stored_examples import accurate, keep, line
from stored_runs import result

from contextlab.errors import UserError
from contextlab.harness.stored import Result
from contextlab.reports.filters import LeftOut
from contextlab.reports.plots.chosen import PictureOptions
from contextlab.reports.plots.lengths import effective_length
from contextlab.reports.plots.picture import Picture


def stored(folder: Path, method: str, split: str, right: int, **changes: object) -> Result:
    """A run of ten texts, of which so many are answered."""
    lines = [
        line(name, float(n < right), parts={"accuracy": [[float(n < right), 1, name]]})
        for n, name in enumerate("abcdefghij")
    ]
    return keep(folder, accurate(method, right / 10, **{"task": "quiz", "split": split, **changes}), lines)


@pytest.fixture
def runs(tmp_path: Path) -> list[Result]:
    return [
        stored(tmp_path, method, split, right)
        for method, rights in {"full": (8, 6, 8), "window": (5, 5), "sinks": (0, 1)}.items()
        for split, right in zip(("1k", "2k", "8k"), rights, strict=False)
    ]


def draw(runs: list[Result], **options: object) -> Picture:
    return effective_length(runs, PictureOptions(**options), LeftOut(len(runs)))  # type: ignore[arg-type]


def test_shares_of_the_first_score_are_lines_over_lengths(runs: list[Result]) -> None:
    drawn = draw(runs)
    (panel,) = drawn.panels
    assert {series.label: (series.x, series.y) for series in panel.series} == {
        "full": ((0.0, 1.0, 2.0), (1.0, pytest.approx(0.75), 1.0)),
        "window": ((0.0, 1.0), (1.0, 1.0)),
    }
    assert [text for _, text in panel.x.ticks] == ["1k", "2k", "8k"]
    assert [guide.y for guide in panel.guides] == [(0.85,)]
    assert drawn.caption.startswith(
        "Share of the accuracy at the shortest length, n = 3 in 10 examples of quiz/1k, quiz/2k"
    )
    assert (
        "line: the 85 % that an effective length needs; bars: 95 % intervals from 1,000 draws" in drawn.caption.lower()
    )
    assert "left out: 2 of 7 runs with a score of 0 at the shortest length" in drawn.caption


def test_only_longer_lengths_of_named_methods_have_an_interval(runs: list[Result]) -> None:
    first, second = draw(runs, label=("full",)).panels[0].series
    start, middle, end = first.intervals
    assert start is None
    assert end == (1.0, 1.0)
    assert middle is not None
    assert middle[0] < 0.75 < middle[1]
    assert (second.quiet, second.intervals) == (True, ())


def test_what_is_no_single_picture_is_refused(runs: list[Result], tmp_path: Path) -> None:
    other = [stored(tmp_path, "full", split, 5, task="other") for split in ("1k", "2k")]
    with pytest.raises(UserError, match=r"for one task, and there are quiz, other: .*--where"):
        draw([*runs, *other])
    wrong = [stored(tmp_path, "full", split, 5, context="wrong") for split in ("1k", "2k")]
    with pytest.raises(UserError, match="one context, and there are own, wrong"):
        draw([*runs, *wrong])
    with pytest.raises(UserError, match="quiz is 0 at the shortest length"):
        draw(runs[-2:])
    with pytest.raises(UserError, match="no effective length"):
        draw([result()])
