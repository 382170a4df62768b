from __future__ import annotations

import math
import re

import pytest
from toy_paper import result

from contextlab.benchmarks.task import Part
from contextlab.harness.stored import Result
from contextlab.reports.papers import schema
from contextlab.reports.papers.readings import COSTS, MeasuredValue, change, gained, printed_change, reading


def test_a_metric_has_its_interval() -> None:
    assert reading(result(18.0), "token_perplexity", "perplexity") == MeasuredValue(18.0, 17.0, 20.0)


def test_a_share_becomes_a_percentage_where_the_paper_prints_percentages() -> None:
    assert reading(result(), "accuracy", "accuracy %") == MeasuredValue(50.0)
    assert reading(result(), "accuracy", "accuracy") == MeasuredValue(0.5)


def test_what_was_not_measured_is_none() -> None:
    assert reading(result(), "f1", "F1 %") is None
    uncounted = {"flops": None, "peak_bytes": None, "seconds": 0.0, "tokens": 0}
    empty = result(cost={"train": None, "contextualize": None, "query": uncounted}, state=None)
    counted = {name: reading(empty, name, "") for name in COSTS}
    assert {name for name, value in counted.items() if value} == {"seconds", "query seconds"}


def test_costs_are_sums_over_phases_in_the_papers_units() -> None:
    values = {name: read(result()) for name, read in COSTS.items()}
    assert values == {
        "tokens per second": 50.0,
        "seconds": 4.0,
        "context seconds": 2.0,
        "query seconds": 2.0,
        "flops": 4e12,
        "context TFLOPs": 1.0,
        "query TFLOPs": 3.0,
        "peak MB": 4.0,
        "state MB": 1.0,
        "state M floats": 0.25,
    }


def test_seconds_beside_another_program_are_not_measured() -> None:
    phase = {"flops": 10, "peak_bytes": 2**20, "seconds": 2.0, "tokens": 8}
    quiet, disturbed = (
        result(cost={"train": None, "contextualize": None, "query": {**phase, "seconds_spread": spread}})
        for spread in (0.1, 0.4)
    )
    assert (COSTS["seconds"](quiet), COSTS["tokens per second"](quiet)) == (2, 4)
    assert (COSTS["seconds"](disturbed), COSTS["tokens per second"](disturbed)) == (None, None)
    assert COSTS["flops"](disturbed) == 10


def test_the_cost_of_training_is_no_cost_of_an_example() -> None:
    trained = result(cost={"train": {"flops": 10**20, "seconds": 1e6, "tokens": 10**6, "peak_bytes": None}})
    assert COSTS["flops"](trained) == 4e12
    assert COSTS["peak MB"](trained) == 4.0


@pytest.mark.parametrize(
    ("value", "baseline", "unit", "text"),
    [
        (21.29, 22.78, "perplexity", "-6.5 %"),
        (71.8, 68.3, "accuracy %", "+3.5"),
        (71.8, None, "accuracy %", ""),
        (8.8, 9.1, "points", "-0.3"),
        (5.0, 0.0, "M floats", ""),
        (5.0, 0.0, "F1 %", "+5.0"),
        (1.0, 1.0, "seconds", "+0.0 %"),
        (9.99, 1.0, "seconds", "+899.0 %"),
        (4000.0, 2.0, "M floats", "2,000 x"),
    ],
)
def test_a_change_is_in_points_or_in_percent(value: float, baseline: float | None, unit: str, text: str) -> None:
    assert change(value, baseline, unit) == text


def test_a_change_of_printed_numbers_leaves_out_what_is_no_number() -> None:
    assert printed_change("71.8 (14.0)", "68.3 (11.6)", "accuracy %") == "+3.5"
    assert printed_change("-", "68.3", "accuracy %") == ""
    assert printed_change("68.3", "-", "accuracy %") == ""
    assert printed_change("68.3", None, "accuracy %") == ""


def with_parts(value: float, *losses: float) -> Result:
    """A result whose documents have these nats per token."""
    parts = {str(n): {"nats_per_token": [Part(loss, 1.0, str(n))]} for n, loss in enumerate(losses)}
    return result(value, parts=parts)


def test_a_gain_has_the_interval_of_the_paired_difference() -> None:
    # Documents differ much, and the difference is nearly the same for all.
    base, mine = with_parts(20.0, 1.0, 2.0, 3.0), with_parts(18.0, 0.89, 1.9, 2.89)
    text, low, high = re.fullmatch(
        r"(.*) \[(.*), (.*)\]", gained(mine, base, "token_perplexity", "perplexity")
    ).groups()
    assert text == "-10.0 %"
    assert -13 < float(low) < 100 * math.expm1(-0.32 / 3) < float(high) < -8


def test_a_gain_in_cost_or_without_parts_has_no_interval() -> None:
    base, mine = with_parts(20.0, 1.0, 2.0, 3.0), with_parts(18.0, 0.89, 1.9, 2.89)
    assert gained(mine, base, "seconds", "seconds") == "+0.0 %"
    assert gained(result(18.0), result(20.0), "token_perplexity", "perplexity") == "-10.0 %"
    assert gained(mine, with_parts(20.0, 1.0), "token_perplexity", "perplexity") == "-10.0 %"
    assert gained(mine, base, "accuracy", "accuracy %") == "+0.0"


def test_a_gain_of_a_share_is_in_points() -> None:
    def of(*scores: float) -> Result:
        parts = {str(n): {"accuracy": [Part(score, 1.0, str(n))]} for n, score in enumerate(scores)}
        metrics = {"accuracy": {"value": sum(scores) / len(scores), "low": None, "high": None, "n": len(scores)}}
        measure = {"name": "accuracy", "higher_is_better": True, "bounded": True}
        return result(parts=parts, measure=measure, metrics=metrics)

    text = gained(of(1, 1, 0, 1), of(0, 1, 0, 0), "accuracy", "accuracy %")
    assert re.fullmatch(r"\+50\.0 \[-?\+?\d+\.\d, \+\d+\.\d\]", text), text


def test_other_examples_give_no_gain() -> None:
    for changed in ({"sha256": "1"}, {"examples": 4}):
        other = result(20.0, data=changed)
        assert gained(result(18.0), other, "token_perplexity", "perplexity") == ""
    assert gained(result(18.0), result(20.0), "f1", "F1 %") == ""


@pytest.mark.parametrize(
    ("measured", "unit", "text"),
    [
        (MeasuredValue(54.06, 49.96, 60), "accuracy %", "54.1 [50.0, 60.0]"),
        (MeasuredValue(30.123), "perplexity", "30.12"),
        (MeasuredValue(14666.4), "tokens/s", "14,666"),
        (MeasuredValue(4.5e12), "training FLOPs", "4.5e+12"),
        (MeasuredValue(0.00022), "MB", "0.00022"),
        (MeasuredValue(1.0, None, 2.0), "MB", "1"),
    ],
)
def test_numbers_as_cells(measured: MeasuredValue, unit: str, text: str) -> None:
    assert measured.text(unit) == text


def test_every_recipe_reads_a_cost_or_a_metric_that_tasks_have() -> None:
    metrics = {"accuracy", "token_perplexity", "f1", "f1_shortest", "exact_match"}
    for paper in schema.papers().values():
        for entry in paper.entry:
            for run in [*(entry.embedded.runs if entry.embedded else []), *entry.runs_of_paper]:
                for name in run.read.values():
                    assert (
                        name in COSTS or name in metrics or name.startswith(("nats_per_token_at_", "exact_match_"))
                    ), name
