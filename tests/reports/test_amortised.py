from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from contextlab.reports.amortised import ALWAYS, NEVER, Line

positive = st.floats(0.01, 100)
costs = st.integers(0, 1000).map(float)


@given(costs, costs, costs, costs, st.integers(1, 10_000))
def test_from_its_break_even_point_on_a_method_is_cheaper(a: float, b: float, c: float, d: float, n: int) -> None:
    one, other = Line(a, b), Line(c, d)
    crossing = one.cheaper_from(other)
    if crossing == NEVER:
        assert one.total(10**9) >= other.total(10**9)
        return
    assume(abs(n - crossing) > 1e-6 * n)
    if n > crossing:
        assert one.total(n) < other.total(n) or crossing == n
    else:
        assert one.total(n) >= other.total(n)


@given(costs, costs, costs, costs)
def test_of_two_methods_at_most_one_is_cheaper_in_the_end(a: float, b: float, c: float, d: float) -> None:
    one, other = Line(a, b), Line(c, d)
    both = [one.cheaper_from(other), other.cheaper_from(one)]
    assert NEVER in both
    if (a, b) != (c, d) and b != d:
        assert min(both) < NEVER
        assert one.total(min(both)) == pytest.approx(other.total(min(both))) or min(both) == ALWAYS


def test_reading_once_is_shared_by_all_questions() -> None:
    one = Line(10.0, 2.0)
    assert [one.each(n) for n in (1, 5, 10)] == [12.0, 4.0, 3.0]
    assert Line(10.0, 1.0).cheaper_from(Line(0.0, 3.0)) == 5.0


@given(positive, positive, positive, positive)
def test_where_two_methods_meet_they_cost_the_same(c1: float, q1: float, c2: float, q2: float) -> None:
    one, two = Line(c1, q1), Line(c2, q2)
    number = one.meets(two)
    if number is None:
        dearer = (c1 >= c2) == (q1 >= q2)
        assert dearer or c1 == c2 or q1 == q2
    else:
        assert one.each(number) == pytest.approx(two.each(number), rel=1e-6)
