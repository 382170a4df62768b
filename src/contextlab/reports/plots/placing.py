"""Where labels stand beside what they name, so that no two overlap. All numbers are inches."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

RADII = tuple(0.08 * 1.3**power for power in range(10))
"""Distances of a label from its point that are tried first: 0.08 to 0.85 inches."""
ANGLES = 24
COVERED, CROSSED = 0.15, 0.6
"""How much farther away, in inches, a label may stand to cover one bar less, and to have one crossing less."""
NEAR = 0.05
"""How much nearer, in inches, a label is to its own point than to any other."""
STEP = 0.05
"""Between the places that are looked at along a line."""
GRID = 0.15
"""Between the places in the whole room that are tried as well."""


class Box(NamedTuple):
    """A rectangle."""

    left: float
    low: float
    right: float
    high: float

    def overlaps(self, other: Box) -> bool:
        """Whether both have an area in common."""
        across = self.left < other.right and other.left < self.right
        return across and self.low < other.high and other.low < self.high

    def holds(self, other: Box) -> bool:
        """Whether the other lies within this one."""
        across = self.left <= other.left and other.right <= self.right
        return across and self.low <= other.low and other.high <= self.high

    def nearest(self, x: float, y: float) -> tuple[float, float]:
        """The place of the box that is nearest to a point."""
        return min(max(x, self.left), self.right), min(max(y, self.low), self.high)


Point = tuple[float, float]
Stroke = tuple[Point, Point]


def spread(centres: Sequence[float], heights: Sequence[float]) -> list[float]:
    """Middles of labels in one column, in the order of their centres, as near to them as is possible without overlap.

    Args:
        centres: where the middle of every label should be.
        heights: of the labels.
    """
    order = sorted(range(len(centres)), key=lambda n: (centres[n], n))
    # Labels that would overlap form a block, whose members keep their distances and which stands in their middle.
    blocks: list[tuple[list[int], float]] = []
    for number in order:
        members, low = [number], centres[number] - heights[number] / 2
        while blocks and blocks[-1][1] + sum(heights[n] for n in blocks[-1][0]) > low:
            members = [*blocks.pop()[0], *members]
            low = _lowest(members, centres, heights)
        blocks.append((members, low))
    middles = [0.0] * len(centres)
    for members, low in blocks:
        for number in members:
            middles[number] = low + heights[number] / 2
            low += heights[number]
    return middles


def within(middles: Sequence[float], heights: Sequence[float], low: float, high: float) -> list[float]:
    """The same labels moved into a range; where they do not fit, they begin at its lower end."""
    order = sorted(range(len(middles)), key=lambda n: middles[n])
    moved = list(middles)
    top = high
    for number in reversed(order):
        moved[number] = min(moved[number], top - heights[number] / 2)
        top = moved[number] - heights[number] / 2
    bottom = low
    for number in order:
        moved[number] = max(moved[number], bottom + heights[number] / 2)
        bottom = moved[number] + heights[number] / 2
    return moved


def beside(
    points: Sequence[Point], sizes: Sequence[Point], marks: Sequence[Box], bars: Sequence[Box], room: Box
) -> list[Box]:
    """Places of labels near their points; none covers another one or a mark, and few cover a bar.

    Args:
        points: that are labelled.
        sizes: width and height of the labels.
        marks: that no label may cover.
        bars: that labels had better not cover.
        room: that holds all labels.
    """
    choices = [_choices(number, points, size, marks, bars, room) for number, size in enumerate(sizes)]
    # Labels with few places are placed first; as a start does not decide everything, every label is the first once.
    order = sorted(range(len(points)), key=lambda n: (len(choices[n]), points[n]))
    starts = [order, *([n, *(other for other in order if other != n)] for n in order)]
    tries = [_placed(start, choices, points, sizes, room) for start in starts]
    return min(tries, key=lambda item: item[0])[1]


def _choices(
    number: int, points: Sequence[Point], size: Point, marks: Sequence[Box], bars: Sequence[Box], room: Box
) -> list[tuple[float, Box]]:
    """The places of a label that cover no mark, whatever other labels there are, the best first, with their badness."""
    point, strangers = points[number], [other for n, other in enumerate(points) if n != number]
    boxes = [box for box in (*_around(point, size), *_grid(room, size)) if room.holds(box) and not _hit(box, marks)]
    return sorted((_badness(box, point, strangers, marks, bars), box) for box in boxes)


def _placed(
    order: Sequence[int],
    choices: Sequence[Sequence[tuple[float, Box]]],
    points: Sequence[Point],
    sizes: Sequence[Point],
    room: Box,
) -> tuple[float, list[Box]]:
    """Labels placed one after the other, each where it is best beside the earlier ones, and their badness in all."""
    placed: dict[int, Box] = {}
    badness: dict[int, float] = {}
    for number in [*order, *order]:
        others = {n: box for n, box in placed.items() if n != number}
        lines = [(points[n], box.nearest(*points[n])) for n, box in others.items()]
        best = (math.inf, _beyond(room, sizes[number], list(others.values())))
        for alone, box in choices[number]:
            if alone >= best[0]:
                break
            if not _hit(box, list(others.values())):
                best = min(best, (alone + _tangled(box, points[number], list(others.values()), lines), box))
        badness[number], placed[number] = best
    return sum(badness.values()), [placed[number] for number in range(len(points))]


def _lowest(members: Sequence[int], centres: Sequence[float], heights: Sequence[float]) -> float:
    """The lower end of a block of labels whose middles are on average at their centres."""
    before = list(itertools.accumulate((heights[n] for n in members), initial=0.0))
    return sum(centres[n] - heights[n] / 2 - start for n, start in zip(members, before, strict=False)) / len(members)


def _around(point: Point, size: Point) -> Iterator[Box]:
    """Boxes on circles around a point, the nearest first."""
    for radius, step in itertools.product(RADII, range(ANGLES)):
        angle = 2 * math.pi * step / ANGLES
        x, y = point[0] + radius * math.cos(angle), point[1] + radius * math.sin(angle)
        # The box lies outside of the circle: on the right of it at 0, above it at a right angle.
        left, low = x - size[0] * (1 - math.cos(angle)) / 2, y - size[1] * (1 - math.sin(angle)) / 2
        yield Box(left, low, left + size[0], low + size[1])


def _grid(room: Box, size: Point) -> Iterator[Box]:
    """Boxes all over a room."""
    columns, rows = (int(have / GRID) for have in (room.right - room.left - size[0], room.high - room.low - size[1]))
    for column, row in itertools.product(range(columns + 1), range(rows + 1)):
        left, low = room.left + column * GRID, room.low + row * GRID
        yield Box(left, low, left + size[0], low + size[1])


def _beyond(room: Box, size: Point, placed: Sequence[Box]) -> Box:
    """A place above everything else, for a label that has none."""
    low = max([room.high, *(box.high for box in placed)])
    return Box(room.left, low, room.left + size[0], low + size[1])


def _hit(box: Box, others: Sequence[Box]) -> bool:
    return any(box.overlaps(other) for other in others)


def _badness(box: Box, point: Point, strangers: Sequence[Point], marks: Sequence[Box], bars: Sequence[Box]) -> float:
    """Inches to the point, and more for bars that are covered, marks on the way, and other points that are as near."""
    way = (point, box.nearest(*point))
    distance = math.dist(*way)
    covered = sum(box.overlaps(bar) for bar in bars)
    # A label that is as near to another point could be taken for the name of that one.
    crossed = sum(math.dist(stranger, box.nearest(*stranger)) < distance + NEAR for stranger in strangers)
    places = _along(way)
    crossed += sum(any(_inside(place, mark) for place in places) for mark in marks)
    return distance + COVERED * covered + CROSSED * crossed


def _tangled(box: Box, point: Point, others: Sequence[Box], lines: Sequence[Stroke]) -> float:
    """The penalty where the line to the point crosses another label or line, or the label crosses such a line."""
    way = (point, box.nearest(*point))
    places = _along(way)
    overlaps = sum(any(_inside(place, other) for place in places) for other in others)
    overlaps += sum(_cross(way, line) or any(_inside(place, box) for place in _along(line)) for line in lines)
    return CROSSED * overlaps


def _along(line: Stroke) -> list[Point]:
    """Places on a line after its beginning."""
    (x, y), (end_x, end_y) = line
    steps = int(math.dist(*line) / STEP)
    return [(x + (end_x - x) * n / steps, y + (end_y - y) * n / steps) for n in range(3, steps)]


def _inside(place: Point, box: Box) -> bool:
    return box.left < place[0] < box.right and box.low < place[1] < box.high


def _cross(first: Stroke, other: Stroke) -> bool:
    """Whether two lines cross."""
    (a, b), (c, d) = first, other
    return _turn(a, b, c) * _turn(a, b, d) < 0 and _turn(c, d, a) * _turn(c, d, b) < 0


def _turn(a: Point, b: Point, c: Point) -> float:
    """Above 0 where the way from a to c is on the left of that to b."""
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])
