from __future__ import annotations

import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextlab.benchmarks.examples import Choice
from contextlab.benchmarks.task import Dataset, Measure, Metric, Options, Part
from contextlab.harness.results import (
    PHASES,
    Case,
    Peaks,
    difference,
    differences,
    measure_of,
    recounted,
    summary,
)
from contextlab.harness.store import line_parts

NONE = Peaks({}, 0)
MEASURES = {"letters/short": Measure("accuracy", True)}
counts = st.integers(0, 2**50)
costs = st.fixed_dictionaries({"flops": counts, "peak_bytes": counts, "seconds": st.floats(0, 1e6), "tokens": counts})


class Mean:
    """A protocol with nothing but a summary."""

    measure = None

    def summarise(self, records: list[dict[str, Any]]) -> dict[str, Metric]:
        return {"mean": Metric(sum(record["value"] for record in records) / len(records), None, None, len(records))}


def summarised(lines: list[dict[str, Any]], peaks: Peaks = NONE) -> dict[str, Any]:
    examples = tuple(Choice(str(n), "work", "", (), 0) for n in range(len(lines)))
    dataset = Dataset(examples, "sample", "", "")
    return summary(Case("toy", None, "s", Options(), dataset, Mean(), None), lines, peaks)  # type: ignore[arg-type]


def line(cost: dict[str, Any], state: dict[str, int] | None = None, value: float = 0.0) -> dict[str, Any]:
    return {"id": "x", "record": {"value": value}, "cost": cost, "state": state}


@given(st.lists(costs, min_size=1, max_size=5))
def test_costs_are_means_and_memory_is_the_highest_peak(every: list[dict[str, Any]]) -> None:
    cost = summarised([line({"query": one}) for one in every])["cost"]
    assert cost.keys() == set(PHASES)
    assert cost["train"] is None
    assert cost["contextualize"] is None
    assert cost["query"]["peak_bytes"] == max(one["peak_bytes"] for one in every)
    for key in ("flops", "tokens"):
        assert isinstance(cost["query"][key], int)
        assert min(one[key] for one in every) <= cost["query"][key] <= max(one[key] for one in every)
    assert cost["query"]["seconds"] == statistics.median(one["seconds"] for one in every)


def of(flops: int | None, seconds: float, tokens: int = 10) -> dict[str, Any]:
    return line({"query": {"flops": flops, "peak_bytes": None, "seconds": seconds, "tokens": tokens}})


def test_the_spread_of_seconds_is_that_of_equal_work() -> None:
    calm = summarised([of(100 * n, 2.0 * n) for n in (1, 5, 2, 9)])["cost"]["query"]
    assert calm["seconds"] == 7.0
    assert calm["seconds_spread"] == 0.0
    busy = summarised([of(100, seconds) for seconds in (1.0, 1.0, 2.0, 4.0)])["cost"]["query"]
    assert busy["seconds_spread"] == pytest.approx((2.5 - 1.0) / 1.5)
    assert summarised([of(100, 1.0)] * 3)["cost"]["query"]["seconds_spread"] is None


def test_what_was_not_counted_is_none_and_not_zero() -> None:
    cost = summarised([of(None, 1.0, 10 * n) for n in (1, 2, 3, 4)])["cost"]["query"]
    assert (cost["flops"], cost["peak_bytes"], cost["tokens"]) == (None, None, 25)
    assert cost["seconds_spread"] > 0
    assert summarised([of(5, 1.0), of(None, 1.0)])["cost"]["query"]["flops"] is None


def test_peaks_that_were_measured_go_before_those_of_lines() -> None:
    assert summarised([of(1, 1.0)], Peaks({"query": 7}, 1))["cost"]["query"]["peak_bytes"] == 7
    stored = {**summarised([of(1, 1.0)], Peaks({"query": 7}, 1))}
    again = Peaks.of(stored).with_measured({"query": 5, "contextualize": 3}, 4)
    assert again == Peaks({"query": 7, "contextualize": 3}, 4)
    assert Peaks.of(None) == Peaks.of({"cost": {"query": {"peak_bytes": 9}}}) == NONE


def test_a_line_is_recounted_in_its_flops_alone() -> None:
    before, watched = of(5, 1.0), of(8, 3.0)
    after = recounted(before, watched)
    assert after["cost"]["query"] == {**before["cost"]["query"], "flops": 8}
    assert {**after, "cost": 0} == {**before, "cost": 0}


def test_an_example_that_was_skipped_does_not_dilute_the_cost() -> None:
    one = {"flops": 10, "peak_bytes": 4, "seconds": 2.0, "tokens": 6}
    state = {"bytes": 8, "floats": 2, "tokens": 1}
    result = summarised([line({"query": one}, state, 1.0), line({}, None, 3.0)])
    assert result["cost"]["query"] == {**one, "flops_formula": None, "seconds_spread": None}
    assert result["state"] == state
    assert result["metrics"] == {"mean": {"value": 2.0, "low": None, "high": None, "n": 2}}
    assert result["measure"] == {"name": "mean", "higher_is_better": None, "bounded": False}


def test_energy_is_a_mean_over_examples_that_all_have_it() -> None:
    one: dict[str, Any] = {"flops": 10, "peak_bytes": 4, "seconds": 2.0, "tokens": 6}
    costs = [{**one, "joules": 3.0}, {**one, "joules": 5.0}]
    assert summarised([line({"query": cost}) for cost in costs])["cost"]["query"]["joules"] == 4.0
    costs.append({**one, "joules": None})
    assert "joules" not in summarised([line({"query": cost}) for cost in costs])["cost"]["query"]


def test_a_method_that_keeps_nothing_has_no_state() -> None:
    assert summarised([line({}), line({})])["state"] is None


def lines(qualities: dict[str, float]) -> dict[str, Any]:
    return {name: line_parts({"id": name, "quality": quality}) for name, quality in qualities.items()}


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

    def run(nats: dict[str, float]) -> dict[str, Any]:
        tokens = {"long": 90, "short": 10}
        return {
            name: line_parts(
                {
                    "id": name,
                    "quality": one,
                    "parts": {"nats_per_token": [Part(one * tokens[name], tokens[name], name)]},
                }
            )
            for name, one in nats.items()
        }

    metric = difference(Measure("nats_per_token"), run({"long": 3.0, "short": 5.0}), run({"long": 2.0, "short": 5.0}))
    assert metric is not None
    assert metric.value == pytest.approx(0.9)


def test_runs_that_were_stored_without_parts_are_compared_in_their_qualities() -> None:
    new = {
        name: line_parts({"id": name, "quality": 1.0, "parts": {"accuracy": [Part(9.0, 9.0, name)]}}) for name in "ab"
    }
    old = lines({"a": 0.0, "b": 0.5})
    for one, two, expected in ((new, old, 0.75), (old, new, -0.75), (new, new, 0.0)):
        metric = difference(Measure("accuracy"), one, two)
        assert metric is not None
        assert metric.value == expected
    assert measure_of({"metrics": {"f1": {}, "other": {}}}) == Measure("f1")
    stored = {"name": "nats", "higher_is_better": False, "bounded": False}
    assert measure_of({"metrics": {}, "measure": stored}) == Measure("nats", False)
