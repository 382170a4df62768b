from __future__ import annotations

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextlab.reports.plots.picture import Axis, Panel, Picture, Series, front

points = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=12)


def beats(one: tuple[float, float], other: tuple[float, float], higher: bool) -> bool:
    """Whether one costs no more and is no worse, and is better in one of both."""
    sign = 1 if higher else -1
    no_worse = one[0] <= other[0] and sign * one[1] >= sign * other[1]
    return no_worse and one != other


@given(points, st.booleans())
def test_the_front_is_what_no_other_point_beats(where: list[tuple[float, float]], higher: bool) -> None:
    best = {where[number] for number in front(where, higher)}
    assert best == {one for one in where if not any(beats(other, one, higher) for other in where)}


@given(points, st.booleans())
def test_along_the_front_both_rise(where: list[tuple[float, float]], higher: bool) -> None:
    along = [where[number] for number in front(where, higher)]
    sign = 1 if higher else -1
    for one, other in itertools.pairwise(along):
        assert one[0] < other[0]
        assert sign * one[1] < sign * other[1]


def picture(y: float = 0.1) -> Picture:
    return Picture((Panel(Axis("a"), Axis("b"), (Series("window", "window", (1.0,), (y,)),)),), "what it is")


def test_a_digest_changes_with_any_number_or_word() -> None:
    assert picture().digest == picture(0.1 + 1e-16).digest
    assert len({picture().digest, picture(0.2).digest, dataclasses.replace(picture(), caption="other").digest}) == 3


@pytest.mark.parametrize("number", [float("nan"), 1e300, -0.0])
def test_a_digest_takes_any_number(number: float) -> None:
    assert len(picture(number).digest) == 64
