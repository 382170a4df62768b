from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stored_runs import result

from contextlab.benchmarks.task import Measure, Part
from contextlab.harness.results import (
    Peaks,
    costs,
    difference,
    differences,
    mean_size,
    recounted,
    unmeasured,
)
from contextlab.harness.stored import QUALITY, CallCost, Cost, ExampleLine, Parts, Phase, Size

NONE = Peaks({}, 0)
MEASURES = {"letters/short": Measure("accuracy", True)}
counts = st.integers(0, 2**50)
calls = st.builds(CallCost, flops=counts, peak_bytes=counts, seconds=st.floats(0, 1e6), tokens=counts)


def line(cost: dict[Phase, CallCost], state: Size | None = None) -> ExampleLine:
    return ExampleLine(id="x", index=0, record={}, quality=0.0, cost=cost, state=state)


def query(lines: list[ExampleLine], peaks: Peaks = NONE) -> Cost:
    cost = costs(lines, peaks).query
    assert cost is not None
    return cost


@given(st.lists(calls, min_size=1, max_size=5))
def test_costs_are_means_and_memory_is_the_highest_peak(every: list[CallCost]) -> None:
    phases = costs([line({"query": one}) for one in every], NONE)
    assert (phases.train, phases.contextualize) == (None, None)
    cost = query([line({"query": one}) for one in every])
    assert cost.peak_bytes == max(one.peak_bytes or 0 for one in every)
    for mean, counted in ((cost.flops, [one.flops for one in every]), (cost.tokens, [one.tokens for one in every])):
        assert isinstance(mean, int)
        assert min(one or 0 for one in counted) <= mean <= max(one or 0 for one in counted)
    assert cost.seconds == statistics.median(one.seconds for one in every)


def of(flops: int | None, seconds: float, tokens: int = 10, joules: float | None = None) -> ExampleLine:
    return line({"query": CallCost(flops=flops, peak_bytes=None, seconds=seconds, tokens=tokens, joules=joules)})


def test_the_spread_of_seconds_is_that_of_equal_work() -> None:
    calm = query([of(100 * n, 2.0 * n) for n in (1, 5, 2, 9)])
    assert calm.seconds == 7.0
    assert calm.seconds_spread == 0.0
    busy = query([of(100, seconds) for seconds in (1.0, 1.0, 2.0, 4.0)])
    assert busy.seconds_spread == pytest.approx((2.5 - 1.0) / 1.5)
    assert query([of(100, 1.0)] * 3).seconds_spread is None


def test_what_was_not_counted_is_none_and_not_zero() -> None:
    cost = query([of(None, 1.0, 10 * n) for n in (1, 2, 3, 4)])
    assert (cost.flops, cost.peak_bytes, cost.tokens) == (None, None, 25)
    assert cost.seconds_spread is not None
    assert cost.seconds_spread > 0
    assert query([of(5, 1.0), of(None, 1.0)]).flops is None


def test_peaks_that_were_measured_go_before_those_of_lines() -> None:
    assert query([of(1, 1.0)], Peaks({"query": 7}, 1)).peak_bytes == 7
    stored = result(cost={"query": query([of(1, 1.0)], Peaks({"query": 7}, 1)).as_json()}, measured=1)
    again = Peaks.of(stored).with_measured({"query": 5, "contextualize": 3}, 4)
    assert again == Peaks({"query": 7, "contextualize": 3}, 4)
    assert Peaks.of(None) == NONE


def test_what_was_counted_and_not_measured_is_owed() -> None:
    counted, uncounted = of(1, 1.0), of(None, 1.0)
    measured = line({"query": CallCost(flops=1, peak_bytes=5, seconds=1.0, tokens=1)})
    assert unmeasured([counted, uncounted, measured, line({})], 0) == [counted]
    assert unmeasured([counted, counted], 1) == [counted]
    assert unmeasured([counted, counted], 2) == []


def test_a_line_is_recounted_in_its_flops_alone() -> None:
    before, watched = of(5, 1.0), of(8, 3.0)
    after = recounted(before, watched)
    assert after.cost["query"] == before.cost["query"].model_copy(update={"flops": 8})
    assert after.recounted
    assert after.model_copy(update={"cost": before.cost, "recounted": False}) == before


def test_an_example_that_was_skipped_does_not_dilute_the_cost() -> None:
    state = Size(bytes=8, floats=2, tokens=1)
    lines = [line({"query": CallCost(flops=10, peak_bytes=4, seconds=2.0, tokens=6)}, state), line({})]
    assert query(lines) == Cost(flops=10, peak_bytes=4, seconds=2.0, tokens=6)
    assert mean_size(lines) == state


def test_energy_is_a_mean_over_examples_that_all_have_it() -> None:
    lines = [of(10, 2.0, joules=3.0), of(10, 2.0, joules=5.0)]
    assert query(lines).joules == 4.0
    assert query([*lines, of(10, 2.0)]).joules is None


def test_a_method_that_keeps_nothing_has_no_state() -> None:
    assert mean_size([line({}), line({})]) is None


def lines(qualities: dict[str, float]) -> dict[str, Parts]:
    return {name: {QUALITY: [Part(quality, 1.0, name)]} for name, quality in qualities.items()}


qualities = st.dictionaries(st.sampled_from("abcdef"), st.floats(-5, 5))


@given(qualities, qualities)
def test_differences_pair_the_same_examples(own: dict[str, float], none: dict[str, float]) -> None:
    runs = {("m", "letters/short", "own"): lines(own), ("m", "letters/short", "none"): lines(none)}
    all_differences = list(differences(runs, MEASURES))  # type: ignore[arg-type]
    shared = own.keys() & none.keys()
    assert len(all_differences) == bool(shared)
    for one in all_differences:
        assert (one.label, one.measure) == ("m, own - none", "accuracy")
        assert one.higher_is_better is True
        assert one.metric.n == len(shared)
        assert abs(one.metric.value - sum(own[i] - none[i] for i in shared) / len(shared)) < 1e-9


def test_methods_are_compared_with_the_first_under_their_own_context_only() -> None:
    runs = {
        (method, "letters/short", control): lines({"a": value, "b": value})
        for method, control, value in (("m", "own", 1.0), ("m", "none", 0.0), ("other", "own", 3.0))
    }
    values = {d.label: d.metric.value for d in differences(runs, MEASURES)}  # type: ignore[arg-type]
    assert values == {"m, own - none": 1.0, "other - m": 2.0}


def test_a_control_is_not_compared_with_another_method() -> None:
    runs = {
        ("m", "letters/short", "own"): lines({"a": 1.0}),
        ("other", "letters/short", "none"): lines({"a": 0.0}),
    }
    assert list(differences(runs, MEASURES)) == []  # type: ignore[arg-type]
    assert list(differences({}, MEASURES)) == []


def test_the_weights_of_the_measure_are_those_of_the_difference() -> None:
    """A long text has more weight than a short one in nats per token, and also in the difference."""

    def run(nats: dict[str, float]) -> dict[str, Parts]:
        tokens = {"long": 90, "short": 10}
        return {name: {"nats_per_token": [Part(one * tokens[name], tokens[name], name)]} for name, one in nats.items()}

    metric = difference(Measure("nats_per_token"), run({"long": 3.0, "short": 5.0}), run({"long": 2.0, "short": 5.0}))
    assert metric is not None
    assert metric.value == pytest.approx(0.9)


def test_runs_that_were_stored_without_parts_are_compared_in_their_qualities() -> None:
    new = {name: {"accuracy": [Part(9.0, 9.0, name)], QUALITY: [Part(1.0, 1.0, name)]} for name in "ab"}
    old = lines({"a": 0.0, "b": 0.5})
    for one, two, expected in ((new, old, 0.75), (old, new, -0.75), (new, new, 0.0)):
        metric = difference(Measure("accuracy"), one, two)
        assert metric is not None
        assert metric.value == expected
