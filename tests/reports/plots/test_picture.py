from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stored_examples import keep, line, metric
from stored_runs import result

from contextlab.harness.stored import Result
from contextlab.reports.filters import LeftOut
from contextlab.reports.frame import frame_of
from contextlab.reports.plots.picture import (
    Axis,
    Panel,
    Picture,
    Series,
    bars_of,
    caption,
    count_of,
    data_of,
    front,
    grey_of,
    notes,
)

points = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=12)


def beats(point: tuple[float, float], other: tuple[float, float], higher: bool) -> bool:
    """Whether one costs no more and is no worse, and is better in one of both."""
    sign = 1 if higher else -1
    no_worse = point[0] <= other[0] and sign * point[1] >= sign * other[1]
    return no_worse and point != other


@given(points, st.booleans())
def test_the_front_is_what_no_other_point_beats(where: list[tuple[float, float]], higher: bool) -> None:
    best = {where[number] for number in front(where, higher)}
    assert best == {point for point in where if not any(beats(other, point, higher) for other in where)}


@given(points, st.booleans())
def test_along_the_front_both_rise(where: list[tuple[float, float]], higher: bool) -> None:
    along = [where[number] for number in front(where, higher)]
    sign = 1 if higher else -1
    for point, other in itertools.pairwise(along):
        assert point[0] < other[0]
        assert sign * point[1] < sign * other[1]


def picture(y: float = 0.1) -> Picture:
    return Picture((Panel(Axis("a"), Axis("b"), (Series("window", "window", (1.0,), (y,)),)),), "what it is")


def test_a_digest_changes_with_any_number_or_word() -> None:
    assert picture().digest == picture(0.1 + 1e-16).digest
    assert len({picture().digest, picture(0.2).digest, dataclasses.replace(picture(), caption="other").digest}) == 3


@pytest.mark.parametrize("number", [float("nan"), 1e300, -0.0])
def test_a_digest_takes_any_number(number: float) -> None:
    assert len(picture(number).digest) == 64


def run(examples: int, n: int, **changes: Any) -> Result:
    return result(metrics={"nats_per_token": metric(3.0, n=n)}, data={"examples": examples}, **changes)


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ([(22, 22)], "n = 22 examples"),
        ([(1, 1)], "n = 1 example"),
        ([(6, 48)], "n = 48 in 6 examples"),
        ([(20, 20), (1200, 1200)], "n = 20 to 1,200 examples"),
    ],
)
def test_the_number_of_examples_is_said(sizes: list[tuple[int, int]], words: str) -> None:
    assert count_of(frame_of([run(*size) for size in sizes])) == words


def test_tasks_with_the_same_data_are_said_together() -> None:
    frame = frame_of([run(3, 3, split=split) for split in ("S1", "S2")])
    assert data_of(frame) == "n = 3 examples of pg22/S1, pg22/S2 (real: 50 % of the books & more, local), tiny-llama"


def test_bars_say_what_they_are_over(tmp_path: Path) -> None:
    def stored(works: dict[str, str]) -> Result:
        lines = [
            line(name, 1.0, record={"id": name, "work": work}, parts={"nats_per_token": [[1.0, 1, work]]})
            for name, work in works.items()
        ]
        return keep(tmp_path, result(), lines)

    chapters, books = ({"a": "x", "b": "x", "c": "y"}, {"a": "a", "b": "b"})
    rows = frame_of([stored(chapters)]).query("metric == 'nats_per_token'")
    assert bars_of(rows, True, True) == "bars: 95 % intervals of paired differences over 2 works"
    rows = frame_of([stored(books)]).query("metric == 'nats_per_token'")
    assert bars_of(rows, True, False) == "bars: 95 % intervals over 2 examples"
    assert bars_of(rows, False, True) == ""


def test_a_caption_has_sentences_and_one_legend() -> None:
    left_out = LeftOut(9).also(2, "by n>3")
    assert caption(["first", ""], ["bars: x", ""], left_out) == "First. Bars: x; left out: 2 of 9 runs by n>3."
    assert caption(["first", "second"], [], LeftOut(9)) == "First. Second."


def test_notes_name_what_is_grey() -> None:
    assert notes(frame_of([result()]), ["a", "b"]).endswith("seed 0. Grey: a; b.")
    assert grey_of(["a"]) == "grey: 1 further method"
    assert grey_of([]) == ""
