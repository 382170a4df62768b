from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_tables import NATS, STATE, column, table

from contextlab.errors import UserError
from contextlab.reports.cells import (
    Cell,
    ColumnKind,
    Table,
    in_groups,
    number,
    sorted_by,
    with_mean_over_tasks,
    written,
)


@pytest.mark.parametrize(
    ("cell", "kind", "text"),
    [
        (Cell(3.45327), "metric", "3.453"),
        (Cell(3.45327, 1.7, 4.612), "metric", "3.453 [1.700, 4.612]"),
        (Cell(-0.0349, -0.1, 0.02), "difference", "-0.035 [-0.100, +0.020]"),
        (Cell(0.0), "difference", "+0.000"),
        (Cell(-1e-17, -0.5, 1.0), "share", "0.00 [-0.50, 1.00]"),
        (Cell(-0.0012, -0.5, 1.0), "share", "-0.0012 [-0.50, 1.00]"),
        (Cell(0.94, 0.82, 1.001), "share", "0.94 [0.82, 1.00]"),
        (Cell(0.000178), "metric", "0.00018"),
        (Cell(0.029, 0.00018, 0.831), "metric", "0.029 [0.000, 0.831]"),
        (Cell(-0.0022, -0.004, -0.0004), "difference", "-0.0022 [-0.0040, -0.0004]"),
        (Cell(-0.03, -0.06, -0.0004), "difference", "-0.030 [-0.060, -0.000]"),
        (Cell(-0.000178, -0.0004, 1e-17), "difference", "-0.00018 [-0.00040, +0.00000]"),
        (Cell(3.45, deviation=0.0012), "metric", "3.4500 ± 0.0012"),
        (Cell(0.0022231), "cost", "0.00222"),
        (Cell(1255.7), "cost", "1,256"),
        (Cell(13.94, disturbed=True), "cost", "13.9 ~"),
        (Cell(3.4, deviation=0.25), "metric", "3.400 ± 0.250"),
        (Cell(0.1, deviation=0.25), "difference", "+0.100 ± 0.250"),
        (Cell(12_000), "count", "12,000"),
        (Cell(1e7), "metric", "1e+07"),
    ],
)
def test_numbers_are_written_by_their_kind(cell: Cell, kind: ColumnKind, text: str) -> None:
    assert written(cell, kind) == text


kinds: list[ColumnKind] = ["metric", "difference", "share", "cost"]


@given(st.floats(-1e300, 1e300), st.sampled_from(kinds))
def test_written_numbers_read_back(value: float, kind: ColumnKind) -> None:
    precise = {"metric": 5.1e-4, "difference": 5.1e-4, "share": 5.1e-3, "cost": 0.5}[kind]
    back = float(number(value, kind).replace(",", ""))
    assert back == pytest.approx(value, rel=6e-3, abs=precise)


@given(st.floats(1.1e-5, 1e300), st.sampled_from([-1, 1]), st.sampled_from(kinds))
def test_no_number_but_nothing_is_written_as_nothing(value: float, sign: int, kind: ColumnKind) -> None:
    assert float(number(sign * value, kind).replace(",", "")) != 0


def test_a_frame_has_the_text_of_every_cell() -> None:
    shown = table({"window": [3.2, 1.5], "full": [Cell(3.0, 2.5, 3.5), None]}, [NATS, STATE])
    frame = shown.to_frame()
    assert frame.to_numpy().tolist() == [["3.200", "1.5"], ["3.000 [2.500, 3.500]", ""]]
    assert list(frame.columns) == ["nats_per_token", "state MiB"]
    assert frame.attrs["caption"] == "pg22/S2: real: 50 % of the books & more (local). x_y."
    assert frame.attrs["notes"] == "how_so."


def test_headings_have_units() -> None:
    assert [NATS.heading, STATE.heading] == ["nats/token", "state (MiB)"]
    assert column("f1", group="squad").label == "squad f1"


def test_neighbours_with_one_group_are_together() -> None:
    columns = [column(name, group=group) for name, group in (("a", ""), ("b", "x"), ("c", "x"), ("d", "y"))]
    assert in_groups(columns) == [("", [0]), ("x", [1, 2]), ("y", [3])]
    assert in_groups([]) == []


@given(st.permutations(range(3)), st.lists(st.integers(0, 1), unique=True, max_size=2))
def test_a_part_of_a_table_has_the_same_texts(rows: list[int], columns: list[int]) -> None:
    whole = table({"window": (3.4, None), "full": (3.3, 315), "sliding": (None, 45.2)}, (NATS, STATE))
    part = whole.part(rows, columns)
    assert part.rows == tuple(whole.rows[row] for row in rows)
    assert part.columns == tuple(whole.columns[column] for column in columns)
    texts = [[part.text(n, m) for m in range(len(columns))] for n in range(3)]
    assert texts == [[whole.text(row, column) for column in columns] for row in rows]
    assert part.caption == whole.caption


def order(shown: Table) -> list[str]:
    return [label[0] for label in shown.rows]


def test_rows_are_ordered_by_a_column_up_and_down() -> None:
    shown = table({"b": [2.0, 9], "a": [3.0, None], "c": [1.0, 5]}, [NATS, STATE])
    assert order(sorted_by(shown, "")) == ["b", "a", "c"]
    assert order(sorted_by(shown, "nats_per_token")) == ["c", "b", "a"]
    assert order(sorted_by(shown, "-nats_per_token")) == ["a", "b", "c"]
    assert order(sorted_by(shown, "method")) == ["a", "b", "c"]
    assert order(sorted_by(shown, "-method")) == ["c", "b", "a"]


def test_rows_without_the_number_are_last() -> None:
    shown = table({"b": [2.0, 9], "a": [3.0, None], "c": [1.0, 5]}, [NATS, STATE])
    assert order(sorted_by(shown, "state MiB")) == ["c", "b", "a"]
    assert order(sorted_by(shown, "-state MiB")) == ["b", "c", "a"]


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=9))
def test_an_order_keeps_every_row_with_its_cells(values: list[float]) -> None:
    shown = table({str(n): [value, n] for n, value in enumerate(values)}, [NATS, STATE])
    ordered = sorted_by(shown, "nats_per_token")
    assert [cell.value for cell in ordered.column(0)] == sorted(values)
    assert [values[int(cell.value)] for cell in ordered.column(1)] == sorted(values)


def test_an_unknown_column_is_an_error() -> None:
    with pytest.raises(UserError, match="did you mean 'nats_per_token'"):
        sorted_by(table({"a": [1.0]}, [NATS]), "-nats_per_tokn")


def test_the_mean_over_tasks_is_a_further_group() -> None:
    columns = [column("f1", group=task) for task in ("a", "b")] + [column("share", "share", group="a")]
    shown = with_mean_over_tasks(table({"x": [Cell(0.2, 0.1, 0.3), 0.4, 1], "y": [0.5, None, 2]}, columns), ["task"])
    assert [header.label for header in shown.columns][3:] == ["mean over tasks f1"]
    assert shown.text(0, 3) == "0.300"
    assert shown.text(1, 3) == ""


def test_with_tasks_as_rows_it_is_a_further_row_for_every_method() -> None:
    rows = {"a;x": [0.2, 1], "a;y": [0.4, 2], "b;x": [0.4, 1], "b;y": [None, 1]}
    shown = with_mean_over_tasks(table(rows, [NATS, STATE], keys=("task", "method")), ())
    assert shown.rows[4:] == (("mean over tasks", "x"),)
    assert shown.text(4, 0) == "0.300"
    assert shown.text(4, 1) == ""


def test_one_task_has_no_mean() -> None:
    shown = table({"x": [0.2]}, [column("f1", group="a")])
    assert with_mean_over_tasks(shown, ["task"]) == shown
    rows = table({"a;x": [0.2]}, [NATS], keys=("task", "method"))
    assert with_mean_over_tasks(rows, ()).rows == rows.rows


@pytest.mark.parametrize("columns", [[], ["context"], ["task", "context"]])
def test_a_mean_needs_tasks(columns: list[str]) -> None:
    with pytest.raises(UserError, match="--columns task"):
        with_mean_over_tasks(table({"x": [0.2]}, [NATS]), columns)
