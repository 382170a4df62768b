"""P-values of paired differences: known answers, and agreement with the intervals."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import special, stats

from contextlab.benchmarks.metrics import intervals
from contextlab.benchmarks.metrics.estimates import Examples, compared, holm, paired
from contextlab.benchmarks.metrics.intervals import Estimate, jackknife
from contextlab.benchmarks.task import Measure, Part

NATS = Measure("nats_per_token", higher_is_better=False)
ACCURACY = Measure("accuracy", higher_is_better=True, bounded=True)
numbers = st.floats(-50, 50, allow_nan=False).map(lambda x: round(x, 3))


def run(values: list[float], clusters: list[str] | None = None) -> Examples:
    """One part per example, each in its own cluster unless clusters are named."""
    names = clusters or [str(n) for n in range(len(values))]
    return {str(n): [Part(v, 1.0, c)] for n, (v, c) in enumerate(zip(values, names, strict=True))}


def pvalue(measure: Measure, a: Examples, b: Examples) -> float:
    both = compared(measure, [a], [b])
    assert both is not None
    assert both.pvalue is not None
    return both.pvalue


def symmetric(differences: list[float]) -> list[float]:
    """Differences without skewness: around their mean, each with its mirror image."""
    return [0.3 + sign * difference for difference in differences for sign in (1, -1)]


@given(st.lists(st.floats(0.01, 5), min_size=2, max_size=9))
def test_without_skewness_it_is_scipys_paired_t_test(halves: list[float]) -> None:
    other = [float(n % 5) for n in range(2 * len(halves))]
    mine = [a + d for a, d in zip(other, symmetric(halves), strict=True)]
    expected = stats.ttest_rel(mine, other).pvalue
    assert pvalue(NATS, run(mine), run(other)) == pytest.approx(expected, rel=1e-6, abs=1e-12)


@given(st.lists(st.floats(0.01, 5), min_size=2, max_size=6), st.integers(2, 4))
def test_clusters_of_equal_size_are_tested_by_their_means(halves: list[float], size: int) -> None:
    """The classical answer for clusters: a t test over the means of the clusters, not over the observations."""
    of_clusters = symmetric(halves)
    noise = [math.sin(n) for n in range(size)]
    centred = [draw - sum(noise) / size for draw in noise]
    mine = [d + e for d in of_clusters for e in centred]
    clusters = [str(n) for n in range(len(of_clusters)) for _ in range(size)]
    other = [0.0] * len(mine)
    expected = stats.ttest_1samp(of_clusters, 0.0).pvalue
    assert pvalue(NATS, run(mine, clusters), run(other, clusters)) == pytest.approx(expected, rel=1e-6, abs=1e-12)


@given(st.lists(numbers, min_size=3, max_size=12), st.lists(numbers, min_size=12, max_size=12))
def test_it_is_below_a_twentieth_exactly_where_the_interval_leaves_out_0(a: list[float], b: list[float]) -> None:
    mine, other = run(a), run(b[: len(a)])
    metric, p = paired(NATS, mine, other), pvalue(NATS, mine, other)
    assert metric is not None
    assert metric.low is not None
    assert metric.high is not None
    assume(min(abs(metric.low), abs(metric.high)) > 1e-6)
    assert (p < 0.05) == (metric.low > 0 or metric.high < 0)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=2, max_size=40), st.integers(1, 3))
def test_for_proportions_too(answers: list[tuple[bool, bool]], size: int) -> None:
    clusters = [str(n // size) for n in range(len(answers))]
    assume(len(set(clusters)) > 1)
    mine, other = (run([float(pair[k]) for pair in answers], clusters) for k in (0, 1))
    metric, p = paired(ACCURACY, mine, other), pvalue(ACCURACY, mine, other)
    assert metric is not None
    assert metric.low is not None
    assert metric.high is not None
    assume(min(abs(metric.low), abs(metric.high)) > 1e-9 or metric.value == 0)
    assert (p < 0.05) == (metric.low > 0 or metric.high < 0)


def test_proportions_have_bonett_and_prices_statistic() -> None:
    """Of 20 texts, 9 are right only in one run and 1 only in the other."""
    mine = [1.0] * 9 + [0.0] + [1.0] * 5 + [0.0] * 5
    other = [0.0] * 9 + [1.0] + [1.0] * 5 + [0.0] * 5
    p12, p21, n = (9 + 1) / 22, (1 + 1) / 22, 22
    t = (p12 - p21) / math.sqrt((p12 + p21 - (p12 - p21) ** 2) / n)
    assert pvalue(ACCURACY, run(mine), run(other)) == pytest.approx(2 * special.stdtr(19, -t), rel=1e-9)


@given(st.lists(numbers, min_size=3, max_size=12), st.floats(0.01, 0.5), st.booleans())
def test_it_is_the_level_at_which_the_interval_touches_0(values: list[float], level: float, above: bool) -> None:
    """The bound of an interval of any level is a value whose p-value is 1 minus that level."""
    estimate = jackknife(run(values) and [part for parts in run(values).values() for part in parts])
    assume(estimate.variance > 1e-6)
    quantile = float(special.stdtrit(estimate.degrees, 1 - level / 2))
    at_level = AtLevel(**{field.name: getattr(estimate, field.name) for field in dataclasses.fields(Estimate)})
    at_level.used.append(quantile)
    bounds = intervals.mean_interval(at_level)
    assert bounds is not None
    touching = dataclasses.replace(estimate, value=estimate.value - bounds[above])
    assert intervals.mean_pvalue(touching) == pytest.approx(level, rel=1e-5)


@dataclasses.dataclass(frozen=True)
class AtLevel(Estimate):
    """An estimate whose interval has another level."""

    used: list[float] = dataclasses.field(default_factory=list)

    @property
    def quantile(self) -> float:
        return self.used[0]


def test_a_paired_difference_is_seen_that_an_unpaired_test_misses() -> None:
    generator = np.random.default_rng(0)
    texts = generator.normal(3, 1, 24)
    better = texts - 0.05 + generator.normal(0, 0.02, 24)
    assert stats.ttest_ind(better, texts).pvalue > 0.8
    assert pvalue(NATS, run(list(better)), run(list(texts))) < 1e-6


def test_many_observations_of_few_clusters_are_few() -> None:
    generator = np.random.default_rng(1)
    works = np.repeat(generator.normal(0.1, 0.2, 4), 50)
    mine = list(works + generator.normal(0, 0.05, 200))
    clusters = [str(n // 50) for n in range(200)]
    alone = pvalue(NATS, run(mine), run([0.0] * 200))
    assert alone < 1e-3
    assert pvalue(NATS, run(mine, clusters), run([0.0] * 200, clusters)) > 0.05


def test_runs_that_are_equal_do_not_differ() -> None:
    for measure in (NATS, ACCURACY):
        assert pvalue(measure, run([0.0, 1.0, 1.0]), run([0.0, 1.0, 1.0])) == 1.0


def test_one_cluster_has_no_test() -> None:
    for measure in (NATS, ACCURACY):
        both = compared(measure, [run([0.0, 1.0], ["a", "a"])], [run([1.0, 1.0], ["a", "a"])])
        assert both is not None
        assert both.pvalue is None


def test_seeds_are_a_level_of_their_own() -> None:
    """A gain that two of three seeds have is not the same as one that all have, whatever the number of texts."""
    texts = [math.sin(n) for n in range(40)]
    other = [run(texts)]

    def p(gains: list[float]) -> float:
        seeds = [run([t - gain + 0.01 * math.cos(7 * n) for n, t in enumerate(texts)]) for gain in gains]
        both = compared(NATS, seeds, other)
        assert both is not None
        assert both.pvalue is not None
        assert both.metric.value == pytest.approx(-sum(gains) / 3, abs=0.01)
        return both.pvalue

    assert p([0.1, 0.1, 0.1]) < 1e-6
    assert p([0.3, 0.3, -0.3]) > 0.5
    assert p([0.1, 0.11, 0.09]) < 0.01


def test_between_seeds_the_degrees_of_freedom_are_satterthwaites() -> None:
    texts = [0.0, 1.0, 2.0, 4.0]
    noise = ([0.1, -0.1, 0.1, -0.1], [0.5, 0.3, 0.5, 0.3])
    seeds = [run([t + e for t, e in zip(texts, each, strict=True)]) for each in noise]
    both = compared(NATS, seeds, [run(texts)])
    assert both is not None
    of_texts = [(a + b) / 2 for a, b in zip(*noise, strict=True)]
    of_seeds = [sum(each) / 4 for each in noise]
    v_texts, v_seeds = np.var(of_texts, ddof=1) / 4, np.var(of_seeds, ddof=1) / 2
    degrees = (v_texts + v_seeds) ** 2 / (v_texts**2 / 3 + v_seeds**2 / 1)
    t = np.mean(of_texts) / math.sqrt(v_texts + v_seeds)
    assert both.pvalue == pytest.approx(2 * special.stdtr(degrees, -t))
    assert both.metric.value == pytest.approx(np.mean(of_texts))


@given(st.lists(numbers, min_size=2, max_size=8), st.integers(2, 4))
def test_equal_seeds_are_one_seed(values: list[float], count: int) -> None:
    other = run([0.5] * len(values))
    once, often = compared(NATS, [run(values)], [other]), compared(NATS, [run(values)] * count, [other])
    assert once is not None
    assert often is not None
    assert often.metric.value == pytest.approx(once.metric.value, abs=1e-9)
    assert often.pvalue == pytest.approx(once.pvalue, abs=1e-6)


def step_down(pvalues: list[float]) -> list[float]:
    """Holm (1979) by its definition: the largest of (m - j + 1) p_(j) over the ordered p-values up to this one."""
    ordered = sorted(pvalues)
    m = len(ordered)
    return [min(1.0, max((m - j) * ordered[j] for j in range(ordered.index(p) + 1))) for p in pvalues]


probabilities = st.lists(st.floats(0, 1), max_size=12)


@given(st.lists(st.floats(0, 1), max_size=12, unique=True))
def test_holms_correction_is_its_definition(pvalues: list[float]) -> None:
    assert holm(pvalues) == pytest.approx(step_down(pvalues))


def test_holms_correction_has_the_published_answer() -> None:
    """The example of R's p.adjust and of statsmodels' multipletests with method holm."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []


@given(probabilities)
def test_a_correction_keeps_the_order_and_lies_between_none_and_bonferronis(pvalues: list[float]) -> None:
    corrected = holm(pvalues)
    for (p, a), (q, b) in itertools.combinations(zip(pvalues, corrected, strict=True), 2):
        assert (p <= q and a <= b) or (q <= p and b <= a)
    assert all(p <= a <= min(1.0, len(pvalues) * p) + 1e-12 for p, a in zip(pvalues, corrected, strict=True))


@pytest.mark.parametrize("spread", [1e-12, 1e-110, 1e-160])
@pytest.mark.parametrize("sign", [1, -1])
def test_differences_that_are_nearly_all_the_same_are_certain(spread: float, sign: int) -> None:
    """Their t is so large that its cube is no number."""
    estimate = Estimate(sign * 1.0, np.array([spread, spread, -2 * spread]), np.full(3, 1 / 3), 3.0)
    assert intervals.mean_pvalue(estimate) == pytest.approx(0, abs=1e-9)
