from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contextlab.benchmarks.metrics.bootstrap import central, draws
from contextlab.benchmarks.metrics.intervals import jackknife, mean_of_ratios
from contextlab.benchmarks.task import Part

part = st.builds(Part, st.floats(0, 1), st.floats(0.1, 5), st.sampled_from("abcdef"), st.sampled_from(["", "x"]))
metrics = st.lists(st.lists(part, min_size=1, max_size=12), min_size=1, max_size=3)


@settings(max_examples=30)
@given(metrics, st.randoms())
def test_draws_depend_on_seed_and_clusters_and_not_on_an_order(of: list[list[Part]], shuffler: random.Random) -> None:
    first = draws(of, count=5)
    shuffled = [shuffler.sample(parts, len(parts)) for parts in of]
    assert np.allclose(draws(shuffled, count=5), first)
    assert first.shape == (5, len(of))


@settings(max_examples=30)
@given(st.lists(part, min_size=1, max_size=12))
def test_a_metric_of_a_single_cluster_is_itself_in_every_draw(parts: list[Part]) -> None:
    alone = [Part(p.numerator, p.denominator, "a", p.stratum) for p in parts]
    assert np.allclose(draws([alone], count=3), mean_of_ratios(alone))


def test_metrics_of_the_same_clusters_are_drawn_together_and_others_apart() -> None:
    values = random.Random(1).choices([0.0, 1.0], k=30)
    of, again, others = ([Part(value, 1.0, f"{name}{n}") for n, value in enumerate(values)] for name in "aab")
    first, same, apart = draws([of, again, others]).T
    assert np.array_equal(first, same)
    assert abs(np.corrcoef(first, apart)[0, 1]) < 0.1


def test_draws_vary_as_the_jackknife_over_clusters() -> None:
    generator = random.Random(2)
    means = [generator.gauss(0.5, 0.1) for _ in range(60)]
    parts = [Part(generator.gauss(mean, 0.1), 1.0, str(n)) for n, mean in enumerate(means) for _ in range(4)]
    values = draws([parts])[:, 0]
    assert values.mean() == pytest.approx(mean_of_ratios(parts), abs=0.003)
    assert values.std() == pytest.approx(jackknife(parts).variance ** 0.5, rel=0.1)


def test_an_interval_leaves_out_an_equal_share_of_both_sides() -> None:
    assert central(np.arange(1000.0)) == (25.0, 974.0)
    assert central(np.array([3.0, 1.0])) == (1.0, 3.0)
