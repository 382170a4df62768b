from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from contextlab.benchmarks.metrics.estimates import (
    compared,
    exponential,
    f1_parts,
    macro_f1,
    paired,
    proportion,
    ratio,
    share_of_full,
)
from contextlab.benchmarks.metrics.intervals import jackknife
from contextlab.benchmarks.task import Measure, Metric, Part

NATS, ACCURACY = Measure("nats_per_token", False), Measure("accuracy", True, bounded=True)
numbers = st.floats(-100, 100, allow_nan=False)
quick = settings(max_examples=50, deadline=None)
# For every example its texts, each with a value in two runs, a weight, a cluster and a stratum.
readings = st.lists(
    st.lists(
        st.tuples(numbers, numbers, st.floats(0.5, 50), st.sampled_from("abc"), st.sampled_from(["x", "y"])),
        min_size=1,
        max_size=3,
    ),
    min_size=1,
    max_size=8,
)


def one_each(values: Sequence[float], weights: Sequence[float] | None = None) -> dict[str, list[Part]]:
    pairs = zip(values, weights or [1.0] * len(values), strict=True)
    return {str(n): [Part(value * weight, weight, str(n))] for n, (value, weight) in enumerate(pairs)}


def flat(run: dict[str, list[Part]]) -> list[Part]:
    return [part for parts in run.values() for part in parts]


def width(metric: Metric | None) -> float:
    assert metric is not None
    assert metric.low is not None
    assert metric.high is not None
    return metric.high - metric.low


@quick
@given(readings, st.booleans())
def test_the_paired_difference_is_the_difference_of_the_metrics(
    rows: list[list[tuple[float, float, float, str, str]]], bounded: bool
) -> None:
    """For any weights, clusters and strata; only over the examples that both runs have."""
    if bounded:
        rows = [[((a + 100) / 200, (b + 100) / 200, *rest) for a, b, *rest in row] for row in rows]  # type: ignore[misc]
    parts = {str(n): [Part(a * w, w, c, s) for a, _, w, c, s in row] for n, row in enumerate(rows)}
    other_parts = {str(n): [Part(b * w, w, c, s) for _, b, w, c, s in row] for n, row in enumerate(rows)}
    metric = paired(ACCURACY if bounded else NATS, {**parts, "mine": [Part(1, 1, "a")]}, other_parts)
    assert metric is not None
    expected = ratio(flat(parts)).value - ratio(flat(other_parts)).value
    assert metric.value == pytest.approx(expected, abs=1e-9)
    assert metric.n == len(flat(parts))
    clusters = {part.cluster for part in flat(parts)}
    assert (metric.low is None) == (metric.high is None) == (len(clusters) == 1)
    if metric.low is not None and metric.high is not None:
        assert metric.low <= metric.value <= metric.high
    turned = paired(ACCURACY if bounded else NATS, other_parts, parts)
    assert turned is not None
    if metric.low is not None and turned.high is not None:
        assert -turned.high == pytest.approx(metric.low, abs=1e-7)


@pytest.mark.parametrize("unchanged", [50, 200, 500])
def test_a_bounded_difference_is_measured_in_every_stratum_whatever_the_size_of_others(unchanged: int) -> None:
    """As the t interval of the same observations, up to the two pairs that are added; more changes, smaller p."""
    same = {f"a{n}": [Part(1, 1, f"a{n}", "a")] for n in range(unchanged)}
    pvalues = list[float]()
    for changed in range(10, 41, 5):
        mine = {f"b{n}": [Part(1, 1, f"b{n}", "b")] for n in range(50)}
        other = {f"b{n}": [Part(n >= changed, 1, f"b{n}", "b")] for n in range(50)}
        bounded = compared(ACCURACY, [same | mine], [same | other])
        free = compared(NATS, [same | mine], [same | other])
        assert bounded is not None
        assert free is not None
        assert bounded.metric.low == pytest.approx(free.metric.low, abs=0.06)
        assert bounded.metric.high == pytest.approx(free.metric.high, abs=0.06)
        assert bounded.pvalue is not None
        pvalues.append(bounded.pvalue)
    assert pvalues == sorted(pvalues, reverse=True)


def test_a_method_of_several_seeds_has_a_wider_difference_than_one_of_the_same_mean() -> None:
    """Whichever side of the difference it stands on."""
    seeds = [one_each([value + shift for value in range(8)]) for shift in (-3, 0, 3)]
    single, other = seeds[1], one_each([2.0 * value for value in range(8)])
    for left, right, alone in ((seeds, [other], (single, other)), ([other], seeds, (other, single))):
        several = compared(NATS, left, right)
        assert several is not None
        assert width(several.metric) > 1.2 * width(paired(NATS, *alone))


@quick
@given(st.lists(st.tuples(numbers, numbers), min_size=2, max_size=9))
def test_paired_nats_have_the_interval_of_the_paired_t_test(rows: list[tuple[float, float]]) -> None:
    """It equals scipy's where the differences are not skewed, and is never narrower."""
    rows += [(b, a) for a, b in rows]
    first, second = zip(*rows, strict=True)
    if np.std(np.subtract(first, second)) < 1e-3:
        return
    expected = stats.ttest_rel(first, second).confidence_interval(0.95)
    difference = paired(NATS, one_each(first), one_each(second))
    assert difference is not None
    assert (difference.low, difference.high) == pytest.approx((expected.low, expected.high), rel=1e-6, abs=1e-9)
    half = paired(NATS, one_each(first[: len(first) // 2]), one_each(second))
    assert half is not None
    if np.std(np.subtract(first, second)[: len(first) // 2]) > 1e-3:
        expected = stats.ttest_rel(first[: len(first) // 2], second[: len(first) // 2]).confidence_interval(0.95)
        assert half.low is not None
        assert half.high is not None
        assert half.low <= expected.low + 1e-9
        assert half.high >= expected.high - 1e-9


@quick
@given(st.lists(numbers, min_size=2, max_size=10), st.integers(-50, 50))
def test_a_constant_difference_in_nats_has_no_width(values: list[float], shift: int) -> None:
    assert paired(NATS, one_each(values), one_each(values)) == Metric(0.0, 0.0, 0.0, len(values))
    whole = [float(round(value)) for value in values]
    moved = paired(NATS, one_each([value + shift for value in whole]), one_each(whole))
    assert moved is not None
    assert moved.value == pytest.approx(shift)
    assert width(moved) == pytest.approx(0, abs=1e-9)


def test_runs_without_a_common_example_have_no_difference() -> None:
    assert paired(NATS, one_each([1.0]), {"other": [Part(1.0, 1.0, "a")]}) is None


def test_examples_whose_observations_differ_are_compared_as_wholes() -> None:
    repeated, single = {"a": [Part(1.0, 1.0, "a"), Part(0.0, 1.0, "a")]}, {"a": [Part(1.0, 1.0, "a")]}
    metric = paired(ACCURACY, {**repeated, "b": [Part(1.0, 1.0, "b")]}, {**single, "b": [Part(1.0, 1.0, "b")]})
    assert metric is not None
    assert metric.value == pytest.approx(2 / 3 - 1)


@pytest.mark.parametrize("measure", [NATS, ACCURACY])
def test_where_runs_have_other_clusters_a_difference_has_the_coarser_ones(measure: Measure) -> None:
    draw = np.random.default_rng(1)
    rights = draw.integers(0, 2, size=(2, 6, 10)).astype(float)
    blocks, texts = (lambda block, text: f"block {block}"), (lambda block, text: f"text {block} {text}")

    def run(number: int, cluster: Callable[[int, int], str]) -> dict[str, list[Part]]:
        values = rights[number].tolist()
        return {
            str(b): [Part(value, 1.0, cluster(b, t)) for t, value in enumerate(row)] for b, row in enumerate(values)
        }

    alike = paired(measure, run(0, blocks), run(1, blocks))
    assert alike == paired(measure, run(0, blocks), run(1, texts)) == paired(measure, run(0, texts), run(1, blocks))
    assert alike != paired(measure, run(0, texts), run(1, texts))


def test_clusters_widen_every_interval() -> None:
    draw = np.random.default_rng(0)
    common = np.repeat(draw.normal(size=8), 6)
    values = (common + 0.1 * draw.normal(size=48)).tolist()
    rights = (common > 0).astype(float).tolist()
    alone, together = [str(n) for n in range(48)], [str(n // 6) for n in range(48)]
    for make, measured in ((ratio, values), (proportion, rights)):
        widths = [
            width(make([Part(value, 1.0, cluster) for value, cluster in zip(measured, clusters, strict=True)]))
            for clusters in (alone, together)
        ]
        assert widths[1] > 2 * widths[0]
    for measure, measured in ((NATS, values), (ACCURACY, rights)):
        runs = [
            {
                str(n): [Part(value, 1.0, cluster)]
                for n, (value, cluster) in enumerate(zip(measured, clusters, strict=True))
            }
            for clusters in (alone, together)
        ]
        zero = [{name: [part._replace(numerator=0.0) for part in parts] for name, parts in run.items()} for run in runs]
        widths = [width(paired(measure, *pair)) for pair in zip(runs, zero, strict=True)]
        assert widths[1] > 2 * widths[0]


def reference_f1(answers: Sequence[int], predictions: Sequence[int]) -> float:
    scores = []
    for label in {*answers, *predictions}:
        hits = sum(a == p == label for a, p in zip(answers, predictions, strict=True))
        scores.append(2 * hits / (answers.count(label) + predictions.count(label)))
    return sum(scores) / len(scores)


@quick
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=30))
def test_macro_f1_is_the_mean_over_the_classes_there_are(pairs: list[tuple[int, int]]) -> None:
    answers, predictions = [a for a, _ in pairs], [p for _, p in pairs]
    texts = [str(n) for n in range(len(pairs))]
    metric = macro_f1(answers, predictions, texts)
    assert metric.value == pytest.approx(reference_f1(answers, predictions))
    assert metric.n == len(pairs)
    assert (metric.low is None) == (len(pairs) == 1)
    if metric.low is not None and metric.high is not None:
        assert 0 <= metric.low <= metric.value <= metric.high <= 1


def test_leaving_out_a_text_changes_macro_f1_by_what_it_is_without_it() -> None:
    answers, predictions = [0, 0, 1, 1, 2, 3], [0, 1, 1, 1, 0, 3]
    parts = [p for n, pair in enumerate(zip(answers, predictions, strict=True)) for p in f1_parts(*pair, str(n))]
    for left_out, change in enumerate(jackknife(parts).changes_G):
        rest = [n for n in range(6) if n != left_out]
        without = reference_f1([answers[n] for n in rest], [predictions[n] for n in rest])
        assert change == pytest.approx(reference_f1(answers, predictions) - without)


def test_macro_f1_needs_as_many_answers_as_predictions() -> None:
    for answers, predictions in (([], []), ([1], [1, 2])):
        with pytest.raises(ValueError, match=r"denominators|zip"):
            macro_f1(answers, predictions, [str(n) for n in range(len(answers))])


WINDOW, FULL = [3.2, 3.4, 3.1, 3.6, 3.3], [3.0, 3.15, 2.92, 3.35, 3.08]


def test_the_share_is_1_for_full_attention_and_0_for_the_window() -> None:
    window, full = one_each(WINDOW), one_each(FULL)
    between = one_each([(a + b) / 2 for a, b in zip(WINDOW, FULL, strict=True)])
    for method, expected in ((window, 0.0), (full, 1.0), (between, 0.5)):
        metric = share_of_full(window, method, full)
        assert metric is not None
        assert (metric.value, metric.low, metric.high) == pytest.approx((expected,) * 3)
        assert metric.n == 5


def test_the_share_has_the_weights_of_the_metric_and_an_interval() -> None:
    weights = [1.0, 9.0, 2.0, 5.0, 3.0]
    method = [3.1, 3.2, 3.05, 3.38, 3.19]
    runs = [one_each(values, weights) for values in (WINDOW, method, FULL)]
    metric = share_of_full(*runs)
    assert metric is not None
    window, mine, full = (ratio(flat(run)).value for run in runs)
    assert metric.value == pytest.approx((window - mine) / (window - full))
    assert width(metric) > 0.05
    assert metric == share_of_full(runs[0], {**runs[1], "more": [Part(1.0, 1.0, "m")]}, runs[2])


def test_there_is_no_share_of_a_gain_that_may_be_none() -> None:
    noisy = [value + shift for value, shift in zip(WINDOW, (-0.5, 0.5, -0.4, 0.3, 0.05), strict=True)]
    assert share_of_full(one_each(WINDOW), one_each(FULL), one_each(noisy)) is None
    worse = [value + 0.2 for value in WINDOW]
    for full, examples in ((WINDOW, 5), (worse, 5), (FULL, 1), (FULL, 0)):
        runs = [one_each(values[:examples]) for values in (WINDOW, FULL, full)]
        assert share_of_full(*runs) is None


def test_exponentials_are_those_of_value_and_bounds() -> None:
    assert exponential(Metric(0.0, None, None, 1)) == Metric(1.0, None, None, 1)
    assert exponential(Metric(1.0, 0.0, 2.0, 3)) == Metric(math.e, 1.0, math.exp(2), 3)
    far = exponential(Metric(3.0, -900.0, 900.0, 2))
    assert far.low == 0
    assert far.high is not None
    assert math.isfinite(far.high)
