from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from stored_runs import changed, result

from contextlab.errors import UserError
from contextlab.harness.stored import Result
from contextlab.reports.break_even import ALWAYS, NEVER, CostLine, line, tables
from contextlab.reports.names import Names


def run(method: str, context: float, query: float, **changes: Any) -> Result:
    """A run that reads a context and answers, with these TFLOPs, and as many seconds."""
    phases = {
        phase: {"flops": round(cost * 1e12), "peak_bytes": 1, "seconds": cost, "seconds_spread": 0.1, "tokens": 5}
        for phase, cost in (("contextualize", context), ("query", query))
    }
    return result(method, cost={"train": None, **phases}, **changes)


def test_an_example_may_have_several_questions() -> None:
    metrics = {"nats_per_token": {"value": 1.0, "low": None, "high": None, "n": 12}}
    assert line(run("a", 3, 8, metrics=metrics), "flops") == CostLine(3.0, 2.0)
    assert line(run("a", 3, 8), "seconds") == CostLine(3.0, 8.0)
    skipped = changed(run("a", 3, 8, metrics=metrics), data={"examples": 5, "skipped": 2})
    assert line(skipped, "flops") == CostLine(3.0, 2.0)


def test_a_context_that_is_read_again_for_every_question_is_a_cost_of_the_question() -> None:
    metrics = {"nats_per_token": {"value": 1.0, "low": None, "high": None, "n": 12}}
    again = run("a", 3, 8, metrics=metrics, split="S1(tokens=9,turns=prompts)")
    assert line(again, "flops") == CostLine(0.0, (3.0 + 8.0) / 4)
    (costs,) = tables([again])
    assert [costs.text(0, column) for column in (0, 1, 3)] == ["0", "2.75", "2.75"]
    similar = run("a", 3, 8, metrics=metrics, split="S1(k=2,choose=topk)")
    assert line(similar, "flops") == line(again, "flops")
    turned = run("a", 3, 8, metrics=metrics, split="S1(turns=gold)")
    assert line(turned, "flops") == CostLine(3.0, 2.0)


def test_both_tables_are_there_for_every_task_and_machine() -> None:
    runs = [run("a", 10, 1), run("b", 0, 3), run("a", 1, 1, task="squad"), run("a", 1, 1)]
    runs[3] = changed(runs[3], provenance={"device": "cuda (H100)"})
    shown = list(tables(runs, questions=[1, 5]))
    assert [len(table.rows) for table in shown] == [2, 2, 1, 1]
    first, crossings = shown[:2]
    assert [column.name for column in first.columns] == [
        "TFLOPs per context", "TFLOPs per question", "state MiB", "1", "5",
    ]  # fmt: skip
    assert [first.text(0, n) for n in range(5)] == ["10", "1", "1", "11", "3"]
    assert [crossings.text(0, 1), crossings.text(1, 0), crossings.text(0, 0)] == ["5", "", ""]
    assert "cuda (H100)" in shown[3].caption
    assert "squad/S2" in shown[2].caption


def trained(method: str, context: float, query: float, training: float) -> Result:
    cost = {"flops": round(training * 1e12), "peak_bytes": None, "seconds": training, "tokens": 5}
    return changed(run(method, context, query), cost={"train": cost})


def test_training_and_names_are_shown() -> None:
    (costs, _) = tables([trained("a", 10, 1, 7), run("b", 1, 1)], names=Names({"method": {"a": "Alpha"}}))
    assert costs.rows[0] == ("Alpha (trained 5)",)
    assert [costs.text(0, column) for column in range(5)] == ["10", "1", "1", "7", "18"]
    assert [costs.text(row, 3) for row in (0, 1)] == ["7", ""]
    assert costs.columns[3].name == "TFLOPs train"


def test_a_trained_method_is_cheaper_when_its_training_has_paid_off() -> None:
    runs = [trained("a", 0, 1, 1000), run("b", 0, 3)]
    (_, once) = tables(runs)
    (shown, shared) = tables(runs, contexts=100)
    assert [once.text(0, 1), shared.text(0, 1)] == ["500", "5"]
    assert "the training, counted once for 100 contexts" in shared.caption
    assert shown.text(0, 4) == "11"
    assert line(runs[0], "seconds") == CostLine(1000.0, 1.0)


def test_columns_of_questions_have_the_unit_of_one_question() -> None:
    metrics = {"nats_per_token": {"value": 1.0, "low": None, "high": None, "n": 12}}
    (costs,) = tables([run("a", 4, 8, metrics=metrics)], questions=[1, 4])
    labels = [column.label for column in costs.columns]
    assert labels[:2] == ["TFLOPs per context", "TFLOPs per question"]
    assert labels[3:] == ["TFLOPs per question of 1", "TFLOPs per question of 4"]
    assert [costs.text(0, n) for n in (0, 1, 3, 4)] == ["4", "2", "6", "3"]
    assert "per example" not in costs.caption + " ".join(costs.notes)


def test_results_without_a_context_before_the_question_are_refused() -> None:
    with pytest.raises(UserError, match="run a task with both, as chapterbreak"):
        list(tables([result()]))


positive = st.floats(0.01, 100)
costs = st.integers(0, 1000).map(float)


@given(costs, costs, costs, costs, st.integers(1, 10_000))
def test_from_its_break_even_point_on_a_method_is_cheaper(a: float, b: float, c: float, d: float, n: int) -> None:
    cost_line, other = CostLine(a, b), CostLine(c, d)
    crossing = cost_line.cheaper_from(other)
    if crossing == NEVER:
        assert cost_line.total(10**9) >= other.total(10**9)
        return
    assume(abs(n - crossing) > 1e-6 * n)
    if n > crossing:
        assert cost_line.total(n) < other.total(n) or crossing == n
    else:
        assert cost_line.total(n) >= other.total(n)


@given(costs, costs, costs, costs)
def test_of_two_methods_at_most_one_is_cheaper_in_the_end(a: float, b: float, c: float, d: float) -> None:
    cost_line, other = CostLine(a, b), CostLine(c, d)
    both = [cost_line.cheaper_from(other), other.cheaper_from(cost_line)]
    assert NEVER in both
    if (a, b) != (c, d) and b != d:
        assert min(both) < NEVER
        assert cost_line.total(min(both)) == pytest.approx(other.total(min(both))) or min(both) == ALWAYS


def test_reading_once_is_shared_by_all_questions() -> None:
    cost_line = CostLine(10.0, 2.0)
    assert [cost_line.each(n) for n in (1, 5, 10)] == [12.0, 4.0, 3.0]
    assert CostLine(10.0, 1.0).cheaper_from(CostLine(0.0, 3.0)) == 5.0


@given(positive, positive, positive, positive)
def test_where_two_methods_meet_they_cost_the_same(c1: float, q1: float, c2: float, q2: float) -> None:
    cost_line, other = CostLine(c1, q1), CostLine(c2, q2)
    number = cost_line.meets(other)
    if number is None:
        dearer = (c1 >= c2) == (q1 >= q2)
        assert dearer or c1 == c2 or q1 == q2
    else:
        assert cost_line.each(number) == pytest.approx(other.each(number), rel=1e-6)
