from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_tables import NATS, STATE, column, table

from contextlab.reports.cells import Cell, Kind, in_groups, number, written


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
def test_numbers_are_written_by_their_kind(cell: Cell, kind: Kind, text: str) -> None:
    assert written(cell, kind) == text


kinds: list[Kind] = ["metric", "difference", "share", "cost"]


@given(st.floats(-1e300, 1e300), st.sampled_from(kinds))
def test_written_numbers_read_back(value: float, kind: Kind) -> None:
    precise = {"metric": 5.1e-4, "difference": 5.1e-4, "share": 5.1e-3, "cost": 0.5}[kind]
    back = float(number(value, kind).replace(",", ""))
    assert back == pytest.approx(value, rel=6e-3, abs=precise)


@given(st.floats(1.1e-5, 1e300), st.sampled_from([-1, 1]), st.sampled_from(kinds))
def test_no_number_but_nothing_is_written_as_nothing(value: float, sign: int, kind: Kind) -> None:
    assert float(number(sign * value, kind).replace(",", "")) != 0


def test_a_frame_has_the_text_of_every_cell() -> None:
    made = table({"window": [3.2, 1.5], "full": [Cell(3.0, 2.5, 3.5), None]}, [NATS, STATE])
    frame = made.to_frame()
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
