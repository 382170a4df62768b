from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from contextlab.benchmarks.metrics import intervals
from contextlab.benchmarks.metrics.intervals import Bounds, jackknife
from contextlab.benchmarks.task import Part

quick = settings(max_examples=60, deadline=None)
numbers = st.floats(-100, 100, allow_nan=False)
names = st.sampled_from("abcdef")
parts = st.lists(
    st.builds(Part, numbers, st.floats(0.5, 50), names, st.sampled_from(["", "x"])), min_size=1, max_size=20
)
shares = st.lists(st.builds(lambda right, name: Part(float(right), 1.0, name), st.booleans(), names), min_size=1)


def width(bounds: Bounds) -> float:
    assert bounds is not None
    return bounds[1] - bounds[0]


def by_hand(rows: list[Part]) -> float:
    """The mean over strata of ratios of sums, from the definition."""
    ratios = []
    for stratum in {part.stratum for part in rows}:
        inside = [part for part in rows if part.stratum == stratum]
        ratios.append(sum(part.numerator for part in inside) / sum(part.denominator for part in inside))
    return sum(ratios) / len(ratios)


@quick
@given(parts)
def test_a_cluster_changes_the_value_by_what_it_is_without_it(rows: list[Part]) -> None:
    estimate = jackknife(rows)
    assert estimate.value == pytest.approx(by_hand(rows), abs=1e-9)
    assert estimate.weights_G.sum() == pytest.approx(1)
    clusters = sorted({part.cluster for part in rows})
    for cluster, change in zip(clusters, estimate.changes_G, strict=True):
        rest = [part for part in rows if part.cluster != cluster]
        assert change == pytest.approx(by_hand(rows) - by_hand(rest) if rest else 0, abs=1e-7)


@quick
@given(parts, st.randoms())
def test_the_order_of_observations_does_not_matter(rows: list[Part], random: Any) -> None:
    before = intervals.mean_interval(jackknife(rows))
    random.shuffle(rows)
    after = intervals.mean_interval(jackknife(rows))
    assert (before is None) == (after is None) == (len({part.cluster for part in rows}) == 1)
    if before is not None and after is not None:
        assert after == pytest.approx(before, rel=1e-6, abs=1e-6)
        assert before[0] <= jackknife(rows).value <= before[1]


@quick
@given(st.lists(numbers, min_size=2, max_size=12))
def test_the_mean_of_equal_clusters_has_students_interval_at_least(values: list[float]) -> None:
    """It equals the textbook's interval where the values are not skewed."""

    def bounds(numbers: list[float]) -> tuple[Bounds, Any]:
        textbook = stats.t.interval(0.95, len(numbers) - 1, np.mean(numbers), stats.sem(numbers))
        return intervals.mean_interval(jackknife([Part(v, 1.0, str(n)) for n, v in enumerate(numbers)])), textbook

    if np.std(values) < 1e-3:
        return
    mirrored = [*values, *(-value for value in values)]
    interval, textbook = bounds(mirrored)
    assert interval == pytest.approx(textbook, rel=1e-6, abs=1e-9)
    interval, textbook = bounds(values)
    assert interval is not None
    assert interval[0] <= textbook[0] + 1e-9
    assert interval[1] >= textbook[1] - 1e-9


def test_skewness_moves_the_bound_on_the_side_of_the_tail() -> None:
    values = [1.0, 1.1, 0.9, 1.0, 5.0]
    rows, mirrored = ([Part(sign * v, 1.0, str(n)) for n, v in enumerate(values)] for sign in (1, -1))
    interval, turned = intervals.mean_interval(jackknife(rows)), intervals.mean_interval(jackknife(mirrored))
    textbook = stats.t.interval(0.95, 4, np.mean(values), stats.sem(values))
    assert interval is not None
    assert turned is not None
    assert interval[0] == pytest.approx(textbook[0])
    assert interval[1] == pytest.approx(np.mean(values) + 1.5 * (textbook[1] - np.mean(values)))
    assert turned == pytest.approx((-interval[1], -interval[0]))


def test_skewness_is_corrected_by_halls_transformation() -> None:
    """The inverse transformation of its bounds gives the quantiles of Student's t."""
    values = np.array([1.0, 1.2, 0.8, 1.1, 0.7, 1.6, 1.0, 1.3, 0.9, 1.5, 1.0, 1.2])
    interval = intervals.mean_interval(jackknife([Part(v, 1.0, str(n)) for n, v in enumerate(values)]))
    assert interval is not None
    n, skewness = len(values), stats.skew(values, bias=False)
    t = (values.mean() - interval[1]) / values.std(ddof=1)
    transformed = t + skewness * t**2 / 3 + skewness**2 * t**3 / 27 + skewness / (6 * n)
    assert math.sqrt(n) * transformed == pytest.approx(stats.t.ppf(0.025, n - 1))


@quick
@given(st.integers(5, 60).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_single_trials_have_wilsons_interval_with_the_t_quantile(counts: tuple[int, int]) -> None:
    right, n = counts
    rows = [Part(float(number < right), 1.0, str(number)) for number in range(n)]
    level = 2 * stats.norm.cdf(stats.t.ppf(0.975, n - 1)) - 1
    wilson = stats.binomtest(right, n).proportion_ci(level, method="wilson")
    interval = intervals.proportion_interval(jackknife(rows))
    assert interval == pytest.approx((wilson.low, wilson.high), rel=1e-5, abs=1e-9)


@quick
@given(shares)
def test_proportions_stay_between_0_and_1_and_mirror(rows: list[Part]) -> None:
    interval = intervals.proportion_interval(jackknife(rows))
    mirrored = intervals.proportion_interval(jackknife([part._replace(numerator=1 - part.numerator) for part in rows]))
    if interval is None or mirrored is None:
        assert len({part.cluster for part in rows}) == 1
        return
    assert 0 <= interval[0] <= jackknife(rows).value <= interval[1] <= 1
    assert mirrored == pytest.approx((1 - interval[1], 1 - interval[0]), abs=1e-6)


def test_what_is_alike_counts_less() -> None:
    """The same 32 answers: each its own cluster, in clusters like the whole, and in clusters of equal answers."""
    answers = [number % 2 for number in range(32)]
    alone = [str(number) for number in range(32)]
    mixed, equals = [str(number // 4) for number in range(32)], [f"{n % 2}/{n // 8}" for n in range(32)]
    widths = [
        width(
            intervals.proportion_interval(jackknife([Part(a, 1.0, c) for a, c in zip(answers, clusters, strict=True)]))
        )
        for clusters in (alone, mixed, equals)
    ]
    assert widths[0] < widths[1] < widths[2]
    assert widths[2] == pytest.approx(
        width(intervals.proportion_interval(jackknife([Part(n % 2, 1.0, str(n)) for n in range(8)])))
    )


@pytest.mark.parametrize("right", [0, 1])
def test_clusters_without_any_miss_promise_no_more_than_their_number(right: int) -> None:
    few, many = ([Part(right, 1.0, str(n % 5)) for n in range(size)] for size in (5, 500))
    assert intervals.proportion_interval(jackknife(few)) == intervals.proportion_interval(jackknife(many))


def test_a_few_equal_pairs_promise_no_equality() -> None:
    same = jackknife([Part(0.0, 1.0, str(n)) for n in range(4)])
    interval = intervals.change_interval(same, 0.0, 0.0)
    assert interval == pytest.approx((-0.750, 0.750), abs=1e-3)
    hundred = intervals.change_interval(jackknife([Part(0.0, 1.0, str(n)) for n in range(100)]), 0.0, 0.0)
    assert hundred == pytest.approx((-0.0275, 0.0275), abs=1e-3)


@pytest.mark.parametrize(("more", "less", "n"), [(20, 10, 100), (3, 0, 40), (7, 7, 14)])
def test_single_pairs_have_bonett_and_prices_interval(more: int, less: int, n: int) -> None:
    differences = [1.0] * more + [-1.0] * less + [0.0] * (n - more - less)
    interval = intervals.change_interval(
        jackknife([Part(d, 1.0, str(i)) for i, d in enumerate(differences)]), *[(more + less) / n] * 2
    )
    above, below = (more + 1) / (n + 2), (less + 1) / (n + 2)
    half = stats.t.ppf(0.975, n - 1) * math.sqrt((above + below - (above - below) ** 2) / (n + 2))
    assert interval == pytest.approx((above - below - half, above - below + half))


@quick
@given(st.lists(st.tuples(st.floats(0.1, 3), st.floats(-1, 3)), min_size=3, max_size=12))
def test_fiellers_bounds_are_where_the_t_test_begins_to_reject(rows: list[tuple[float, float]]) -> None:
    """A ratio is in the interval when the mean of numerator - ratio * denominator may be 0."""
    gains, reached = (
        jackknife([Part(v, 1.0, str(n)) for n, v in enumerate(sample)]) for sample in zip(*rows, strict=True)
    )
    interval = intervals.ratio_interval(reached, gains)
    if interval is None:
        own = intervals.mean_interval(gains)
        assert own is not None
        assert own[0] <= 0
        return
    assert interval[0] <= reached.value / gains.value <= interval[1]
    for bound in interval:
        left = [b - bound * a for a, b in rows]
        error = np.std(left, ddof=1) / math.sqrt(len(left))
        assert abs(np.mean(left)) == pytest.approx(stats.t.ppf(0.975, len(left) - 1) * error, rel=1e-4, abs=1e-6)


def test_there_is_nothing_without_two_clusters_or_something_to_divide_by() -> None:
    estimate = jackknife([Part(3.0, 2.0, "a"), Part(1.0, 2.0, "a")])
    assert estimate.value == 1.0
    assert (
        intervals.mean_interval(estimate)
        is intervals.proportion_interval(estimate)
        is intervals.change_interval(estimate, 1, 1)
        is None
    )
    assert intervals.ratio_interval(estimate, estimate) is None
    for rows in ([], [Part(1.0, 0.0, "a")], [Part(1.0, 1.0, "a"), Part(1.0, 0.0, "b", "x")]):
        with pytest.raises(ValueError, match="denominators"):
            jackknife(rows)


def test_unequal_clusters_count_as_fewer() -> None:
    equal, unequal = (
        jackknife([Part(n, d, str(n)) for n, d in enumerate(sizes)]) for sizes in ([2.0] * 4, [9, 1, 1, 1])
    )
    assert equal.clusters == pytest.approx(4)
    assert unequal.clusters == pytest.approx(144 / 84)
    assert equal.quantile == pytest.approx(stats.t.ppf(0.975, 3))
    assert unequal.quantile == pytest.approx(stats.t.ppf(0.975, 1))
