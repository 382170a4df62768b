from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stored_runs import result

from contextlab.benchmarks.task import Measure, Part
from contextlab.harness.comparison import RunKey, difference, differences
from contextlab.harness.stored import QUALITY, Parts, Result

TASK = "letters/short"


def lines(qualities: dict[str, float]) -> dict[str, Parts]:
    return {name: {QUALITY: [Part(quality, 1.0, name)]} for name, quality in qualities.items()}


def run_with(qualities: dict[str, float]) -> Result:
    accuracy = result("m", 1.0).model_copy(update={"measure": Measure("accuracy", True)})
    return accuracy.placed(None, lines(qualities))


qualities = st.dictionaries(st.sampled_from("abcdef"), st.floats(-5, 5))


@given(qualities, qualities)
def test_differences_pair_the_same_examples(own: dict[str, float], none: dict[str, float]) -> None:
    runs: dict[RunKey, Result] = {("m", TASK, "own"): run_with(own), ("m", TASK, "none"): run_with(none)}
    all_differences = list(differences(runs))
    shared = own.keys() & none.keys()
    assert len(all_differences) == bool(shared)
    for paired_difference in all_differences:
        assert (paired_difference.label, paired_difference.measure) == ("m, own - none", "accuracy")
        assert paired_difference.higher_is_better is True
        assert paired_difference.metric.n == len(shared)
        assert abs(paired_difference.metric.value - sum(own[i] - none[i] for i in shared) / len(shared)) < 1e-9


def test_methods_are_compared_with_the_first_under_their_own_context_only() -> None:
    runs: dict[RunKey, Result] = {
        ("m", TASK, "own"): run_with({"a": 1.0, "b": 1.0}),
        ("m", TASK, "none"): run_with({"a": 0.0, "b": 0.0}),
        ("other", TASK, "own"): run_with({"a": 3.0, "b": 3.0}),
    }
    values = {d.label: d.metric.value for d in differences(runs)}
    assert values == {"m, own - none": 1.0, "other - m": 2.0}


def test_a_control_is_not_compared_with_another_method() -> None:
    runs: dict[RunKey, Result] = {
        ("m", TASK, "own"): run_with({"a": 1.0}),
        ("other", TASK, "none"): run_with({"a": 0.0}),
    }
    assert list(differences(runs)) == []
    assert list(differences({})) == []


def test_the_weights_of_the_measure_are_those_of_the_difference() -> None:
    """A long text has more weight than a short one in nats per token, and also in the difference."""

    def run(nats: dict[str, float]) -> dict[str, Parts]:
        tokens = {"long": 90, "short": 10}
        return {
            name: {"nats_per_token": [Part(loss * tokens[name], tokens[name], name)]} for name, loss in nats.items()
        }

    metric = difference(Measure("nats_per_token"), run({"long": 3.0, "short": 5.0}), run({"long": 2.0, "short": 5.0}))
    assert metric is not None
    assert metric.value == pytest.approx(0.9)


def test_runs_that_were_stored_without_parts_are_compared_in_their_qualities() -> None:
    new = {name: {"accuracy": [Part(9.0, 9.0, name)], QUALITY: [Part(1.0, 1.0, name)]} for name in "ab"}
    old = lines({"a": 0.0, "b": 0.5})
    for minuend, subtrahend, expected in ((new, old, 0.75), (old, new, -0.75), (new, new, 0.0)):
        metric = difference(Measure("accuracy"), minuend, subtrahend)
        assert metric is not None
        assert metric.value == expected
