from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_tables import NATS, STATE, column, table

from contextlab.errors import UserError
from contextlab.reports.cells import Cell, Table
from contextlab.reports.shapes import sorted_by, with_mean_over_tasks


def order(made: Table) -> list[str]:
    return [label[0] for label in made.rows]


def test_rows_are_ordered_by_a_column_up_and_down() -> None:
    made = table({"b": [2.0, 9], "a": [3.0, None], "c": [1.0, 5]}, [NATS, STATE])
    assert order(sorted_by(made, "")) == ["b", "a", "c"]
    assert order(sorted_by(made, "nats_per_token")) == ["c", "b", "a"]
    assert order(sorted_by(made, "-nats_per_token")) == ["a", "b", "c"]
    assert order(sorted_by(made, "method")) == ["a", "b", "c"]
    assert order(sorted_by(made, "-method")) == ["c", "b", "a"]


def test_rows_without_the_number_are_last() -> None:
    made = table({"b": [2.0, 9], "a": [3.0, None], "c": [1.0, 5]}, [NATS, STATE])
    assert order(sorted_by(made, "state MiB")) == ["c", "b", "a"]
    assert order(sorted_by(made, "-state MiB")) == ["b", "c", "a"]


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=9))
def test_an_order_keeps_every_row_with_its_cells(values: list[float]) -> None:
    made = table({str(n): [value, n] for n, value in enumerate(values)}, [NATS, STATE])
    ordered = sorted_by(made, "nats_per_token")
    assert [cell.value for cell in ordered.column(0)] == sorted(values)
    assert [values[int(cell.value)] for cell in ordered.column(1)] == sorted(values)


def test_an_unknown_column_is_an_error() -> None:
    with pytest.raises(UserError, match="did you mean 'nats_per_token'"):
        sorted_by(table({"a": [1.0]}, [NATS]), "-nats_per_tokn")


def test_the_mean_over_tasks_is_a_further_group() -> None:
    columns = [column("f1", group=task) for task in ("a", "b")] + [column("share", "share", group="a")]
    made = with_mean_over_tasks(table({"x": [Cell(0.2, 0.1, 0.3), 0.4, 1], "y": [0.5, None, 2]}, columns), ["task"])
    assert [one.label for one in made.columns][3:] == ["mean over tasks f1"]
    assert made.text(0, 3) == "0.300"
    assert made.text(1, 3) == ""


def test_with_tasks_as_rows_it_is_a_further_row_for_every_method() -> None:
    rows = {"a;x": [0.2, 1], "a;y": [0.4, 2], "b;x": [0.4, 1], "b;y": [None, 1]}
    made = with_mean_over_tasks(table(rows, [NATS, STATE], keys=("task", "method")), ())
    assert made.rows[4:] == (("mean over tasks", "x"),)
    assert made.text(4, 0) == "0.300"
    assert made.text(4, 1) == ""


def test_one_task_has_no_mean() -> None:
    made = table({"x": [0.2]}, [column("f1", group="a")])
    assert with_mean_over_tasks(made, ["task"]) == made
    rows = table({"a;x": [0.2]}, [NATS], keys=("task", "method"))
    assert with_mean_over_tasks(rows, ()).rows == rows.rows


@pytest.mark.parametrize("columns", [[], ["context"], ["task", "context"]])
def test_a_mean_needs_tasks(columns: list[str]) -> None:
    with pytest.raises(UserError, match="--columns task"):
        with_mean_over_tasks(table({"x": [0.2]}, [NATS]), columns)
