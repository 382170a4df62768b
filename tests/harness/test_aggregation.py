from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stored_runs import result

from contextlab.harness.aggregation import (
    Peaks,
    costs,
    mean_size,
    recounted,
    unmeasured,
)
from contextlab.harness.stored import CallCost, ExampleLine, Phase, PhaseCost, StateSize

NONE = Peaks({}, 0)
counts = st.integers(0, 2**50)
calls = st.builds(CallCost, flops=counts, peak_bytes=counts, seconds=st.just(0.0) | st.floats(1e-9, 1e6), tokens=counts)


def line(cost: dict[Phase, CallCost], state: StateSize | None = None) -> ExampleLine:
    return ExampleLine(id="x", index=0, record={}, quality=0.0, cost=cost, state=state)


def query(lines: list[ExampleLine], peaks: Peaks = NONE) -> PhaseCost:
    cost = costs(lines, peaks).query
    assert cost is not None
    return cost


@given(st.lists(calls, min_size=1, max_size=5))
def test_costs_are_means_and_memory_is_the_highest_peak(every: list[CallCost]) -> None:
    phases = costs([line({"query": phase_cost}) for phase_cost in every], NONE)
    assert (phases.train, phases.contextualize) == (None, None)
    cost = query([line({"query": phase_cost}) for phase_cost in every])
    assert cost.peak_bytes == max(phase_cost.peak_bytes or 0 for phase_cost in every)
    for mean, counted in (
        (cost.flops, [phase_cost.flops for phase_cost in every]),
        (cost.tokens, [phase_cost.tokens for phase_cost in every]),
    ):
        assert isinstance(mean, int)
        assert min(count or 0 for count in counted) <= mean <= max(count or 0 for count in counted)
    assert cost.seconds == statistics.median(phase_cost.seconds for phase_cost in every)


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
    state = StateSize(bytes=8, floats=2, tokens=1)
    lines = [line({"query": CallCost(flops=10, peak_bytes=4, seconds=2.0, tokens=6)}, state), line({})]
    assert query(lines) == PhaseCost(flops=10, peak_bytes=4, seconds=2.0, tokens=6)
    assert mean_size(lines) == state


def test_energy_is_a_mean_over_examples_that_all_have_it() -> None:
    lines = [of(10, 2.0, joules=3.0), of(10, 2.0, joules=5.0)]
    assert query(lines).joules == 4.0
    assert query([*lines, of(10, 2.0)]).joules is None


def test_a_method_that_keeps_nothing_has_no_state() -> None:
    assert mean_size([line({}), line({})]) is None
