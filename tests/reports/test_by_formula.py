from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from stored_runs import result

from contextlab.cli.main import main
from contextlab.harness.stored import Result
from contextlab.reports.by_formula import tables
from contextlab.reports.costs import numbers, selected
from contextlab.reports.frame import frame_of
from contextlab.reports.names import Names


def run(method: str, measured: float, formula: float | None, **changes: Any) -> Result:
    """A run whose phases and state all cost this much, in TFLOPs and MiB."""
    cost = {"flops": round(measured * 1e12), "peak_bytes": 1, "seconds": 1.0, "seconds_spread": 0.1, "tokens": 5}
    state = {"bytes": round(measured * 2**20), "floats": 1, "tokens": 1}
    if formula is not None:
        cost["flops_formula"] = round(formula * 1e12)
        state["bytes_formula"] = round(formula * 2**20)
    costs = {"train": None, "contextualize": cost, "query": cost}
    return result(method, cost=costs, state=state, **changes)


def test_measured_costs_stand_beside_those_by_formula_with_their_difference() -> None:
    runs = [run("a", 1.02, 1.0), run("b", 3.0, None), run("c", 0.0, 0.0)]
    (table,) = tables(runs, Names({"method": {"a": "Alpha"}}))
    assert [column.label for column in table.columns[:3]] == [
        "TFLOPs per context measured", "TFLOPs per context by formula", "TFLOPs per context difference",
    ]  # fmt: skip
    assert [[table.text(row, n) for n in range(3)] for row in range(3)] == [
        ["1.02", "1", "+2.000"],
        ["3", "", ""],
        ["0", "0", "+0.000"],
    ]
    assert len(table.columns) == 9
    assert table.rows[0] == ("Alpha",)


def test_several_questions_of_an_example_are_costs_of_one() -> None:
    metrics = {"nats_per_token": {"value": 1.0, "low": None, "high": None, "n": 12}}
    (table,) = tables([run("a", 8.0, 4.0, metrics=metrics)])
    assert [table.text(0, n) for n in range(6)] == ["8", "4", "+100.000", "2", "1", "+100.000"]


def test_results_without_any_formula_have_no_such_table() -> None:
    assert list(tables([run("a", 1.0, None)])) == []


def test_a_phase_that_was_not_read_has_no_columns() -> None:
    cost = {"flops": 2, "flops_formula": 2, "peak_bytes": 1, "seconds": 1.0, "tokens": 5}
    (table,) = tables([result("a", cost={"train": None, "contextualize": None, "query": cost})])
    assert {column.group for column in table.columns} == {"TFLOPs per question", "state MiB"}


def test_formulas_are_costs_of_tables_and_columns_of_the_frame() -> None:
    known = numbers(run("a", 1.02, 1.0))
    assert [cost.name for cost in selected(["formula"])] == [
        "TFLOPs contextualize by formula", "TFLOPs query by formula", "state MiB by formula",
    ]  # fmt: skip
    assert all(known[cost.name].value == 1.0 for cost in selected(["formula"]))
    row = frame_of([run("a", 1.02, 1.0)]).iloc[0]
    assert (row["query_flops_formula"], row["state_bytes_formula"]) == (1e12, 2**20)
    assert frame_of([run("a", 1.02, None)])["query_flops_formula"].isna().all()


def test_the_cost_command_shows_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    methods, task = "window(N=64),longmem(N=64,bank_scope=shared)", "chapterbreak/ctx-512"
    bench = ["bench", "--method", methods, "--task", task, "--backbone", "tiny-llama", "--device", "cpu"]
    assert main([*bench, "--limit", "1", "--out", str(tmp_path)]) == 0
    capsys.readouterr()
    assert main(["cost", str(tmp_path), "--format", "markdown"]) == 0
    *_, table = capsys.readouterr().out.partition("| TFLOPs per context measured |")
    window, longmem = (line for line in table.splitlines() if line.startswith(("| window", "| longmem")))
    assert window.count("+0.000") == 3
    assert longmem.count("|  |") == 3
