from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contextlab.reports.plots.placing import Box, beside, spread, within

inches = st.floats(0, 4, allow_nan=False)
columns = st.lists(st.tuples(inches, st.floats(0.1, 0.5)), min_size=1, max_size=9)
ROOM = Box(0.0, 0.0, 5.0, 4.0)


def overlap(middles: list[float], heights: list[float]) -> bool:
    ends = sorted((middle - height / 2, middle + height / 2) for middle, height in zip(middles, heights, strict=True))
    return any(high > low + 1e-9 for (_, high), (low, _) in itertools.pairwise(ends))


@given(columns)
def test_a_column_keeps_its_order_and_nothing_overlaps(labels: list[tuple[float, float]]) -> None:
    wanted, heights = [list(column) for column in zip(*labels, strict=True)]
    middles = spread(wanted, heights)
    assert not overlap(middles, heights)
    order = sorted(range(len(wanted)), key=lambda n: (wanted[n], n))
    assert [middles[n] for n in order] == sorted(middles)


@given(columns)
def test_labels_that_do_not_overlap_stay_where_they_are(labels: list[tuple[float, float]]) -> None:
    wanted, heights = [list(column) for column in zip(*labels, strict=True)]
    if not overlap(wanted, heights):
        assert spread(wanted, heights) == pytest.approx(wanted)


@given(columns)
def test_labels_that_fit_are_moved_into_the_range(labels: list[tuple[float, float]]) -> None:
    wanted, heights = [list(column) for column in zip(*labels, strict=True)]
    middles = within(spread(wanted, heights), heights, 0.0, 4.5)
    assert not overlap(middles, heights)
    assert min(m - h / 2 for m, h in zip(middles, heights, strict=True)) >= -1e-9
    assert max(m + h / 2 for m, h in zip(middles, heights, strict=True)) <= 4.5 + 1e-9


@settings(deadline=None, max_examples=15)
@given(st.lists(st.tuples(st.floats(0.2, 4.8), st.floats(0.2, 3.8)), min_size=1, max_size=8))
def test_labels_beside_points_cover_neither_each_other_nor_a_mark(points: list[tuple[float, float]]) -> None:
    marks = [Box(x - 0.05, y - 0.05, x + 0.05, y + 0.05) for x, y in points]
    boxes = beside(points, [(1.0, 0.2)] * len(points), marks, [], ROOM)
    for number, box in enumerate(boxes):
        assert ROOM.holds(box)
        assert not any(box.overlaps(other) for other in (*boxes[:number], *marks))


def test_a_label_is_near_its_point_and_beside_an_interval() -> None:
    bar = Box(1.98, 0.5, 2.02, 3.5)
    (box,) = beside([(2.0, 2.0)], [(1.0, 0.2)], [Box(1.95, 1.95, 2.05, 2.05)], [bar], ROOM)
    assert not box.overlaps(bar)
    assert math.dist(box.nearest(2.0, 2.0), (2.0, 2.0)) < 0.2


def test_a_label_at_the_edge_keeps_its_only_place() -> None:
    points = [(0.3, 0.15), (1.5, 0.15)]
    marks = [Box(x - 0.05, y - 0.05, x + 0.05, y + 0.05) for x, y in points]
    low = Box(0.0, 0.0, 2.7, 0.3)
    boxes = beside(points, [(1.0, 0.25), (1.0, 0.25)], marks, [], low)
    assert all(math.dist(box.nearest(*point), point) < 0.2 for box, point in zip(boxes, points, strict=True))


def test_labels_without_room_are_placed_above_it_and_do_not_overlap() -> None:
    small = Box(0.0, 0.0, 1.0, 0.3)
    boxes = beside([(0.5, 0.1)] * 3, [(0.9, 0.25)] * 3, [], [], small)
    assert not any(a.overlaps(b) for n, a in enumerate(boxes) for b in boxes[:n])
