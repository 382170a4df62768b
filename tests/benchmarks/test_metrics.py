from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contextlab.benchmarks.metrics import bootstrap_ratio, exponential, paired_difference, share_of_full, wilson
from contextlab.benchmarks.task import Metric

numbers = st.floats(-100, 100, allow_nan=False)
pairs = st.lists(st.tuples(numbers, st.floats(0.5, 50)), min_size=2, max_size=12)
quick = settings(max_examples=20, deadline=None)


def width(metric: Metric) -> float:
    assert metric.low is not None
    assert metric.high is not None
    return metric.high - metric.low


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_bounds_are_shares_around_the_value(counts: tuple[int, int]) -> None:
    metric = wilson(*counts)
    assert metric.low is not None
    assert metric.high is not None
    assert 0 <= metric.low <= metric.value <= metric.high <= 1
    assert metric.n == counts[1]


@given(st.integers(0, 20), st.integers(2, 30))
def test_wilson_shrinks_with_n_and_mirrors(successes: int, times: int) -> None:
    metric, mirrored = wilson(successes, 20), wilson(20 - successes, 20)
    assert width(wilson(successes * times, 20 * times)) < width(metric)
    assert mirrored.low == pytest.approx(1 - (metric.high or 0))


def test_wilson_is_the_textbook_interval_and_refuses_no_trials() -> None:
    metric = wilson(8, 24)
    assert (metric.low, metric.high) == pytest.approx((0.1797, 0.5329), abs=1e-4)
    for successes, n in ((0, 0), (3, 2), (-1, 2)):
        with pytest.raises(ValueError, match="share"):
            wilson(successes, n)


@quick
@given(pairs, st.randoms())
def test_bootstrap_contains_the_ratio_and_ignores_order(rows: list[tuple[float, float]], random: object) -> None:
    metric = bootstrap_ratio(*zip(*rows, strict=True), resamples=100)
    assert metric.value == pytest.approx(sum(n for n, _ in rows) / sum(d for _, d in rows), abs=1e-9)
    assert metric.low is not None
    assert metric.high is not None
    assert metric.low <= metric.value <= metric.high
    random.shuffle(rows)  # type: ignore[attr-defined]
    assert bootstrap_ratio(*zip(*rows, strict=True), resamples=100) == metric


@quick
@given(pairs)
def test_grouping_is_summing_first(rows: list[tuple[float, float]]) -> None:
    numerators, denominators = zip(*rows, strict=True)
    doubled = bootstrap_ratio(numerators * 2, denominators * 2, list(range(len(rows))) * 2, resamples=50)
    summed = bootstrap_ratio([2 * n for n in numerators], [2 * d for d in denominators], resamples=50)
    assert (doubled.value, doubled.low, doubled.high) == pytest.approx((summed.value, summed.low, summed.high))
    assert doubled.n == 2 * summed.n


def test_bootstrap_shrinks_with_n_and_follows_its_seed() -> None:
    values = [1.0, 2.0, 4.0, 8.0]
    few, many = bootstrap_ratio(values, [1.0] * 4), bootstrap_ratio(values * 16, [1.0] * 64)
    assert width(many) < width(few) / 2
    assert bootstrap_ratio(values * 16, [1.0] * 64, seed=1) != many


def test_bootstrap_needs_two_groups_for_an_interval_and_something_to_divide_by() -> None:
    assert bootstrap_ratio([3.0], [2.0]) == Metric(1.5, None, None, 1)
    assert bootstrap_ratio([3.0, 1.0], [2.0, 2.0], ["a", "a"]) == Metric(1.0, None, None, 2)
    for numerators, denominators in (([], []), ([1.0], [0.0])):
        with pytest.raises(ValueError, match="denominators"):
            bootstrap_ratio(numerators, denominators)
    with pytest.raises(ValueError, match="zip"):
        bootstrap_ratio([1.0], [1.0, 2.0])


@quick
@given(st.lists(numbers, min_size=2, max_size=10), st.integers(-50, 50))
def test_a_constant_difference_has_no_width(values: list[float], shift: int) -> None:
    assert paired_difference(values, values) == Metric(0.0, 0.0, 0.0, len(values))
    whole = [float(round(value)) for value in values]
    moved = paired_difference([value + shift for value in whole], whole)
    assert (moved.value, width(moved)) == (shift, 0)


def test_a_paired_difference_changes_sign_with_its_sides_and_needs_equal_lengths() -> None:
    a, b = [1.0, 5.0, 2.0], [0.0, 7.0, 1.0]
    assert paired_difference(a, b).value == -paired_difference(b, a).value == 0.0
    with pytest.raises(ValueError, match="zip"):
        paired_difference(a, b[:2])


def test_shares_and_exponentials() -> None:
    assert share_of_full(3.0, 3.0, 2.0) == 0
    assert share_of_full(3.0, 2.0, 2.0) == 1
    assert share_of_full(3.0, 2.5, 2.0) == 0.5
    assert math.isnan(share_of_full(3.0, 2.5, 3.0))
    assert exponential(Metric(0.0, None, None, 1)) == Metric(1.0, None, None, 1)
    assert exponential(Metric(1.0, 0.0, 2.0, 3)) == Metric(math.e, 1.0, math.exp(2), 3)
