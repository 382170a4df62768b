from __future__ import annotations

import io
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_tables import NATS, STATE, column, table
from rich.console import Console
from stored_runs import three

from contextlab.reports import terminal
from contextlab.reports.cells import Cell, Column, Table
from contextlab.reports.layout import TableLayout
from contextlab.reports.tables import comparison

WIDE = Cell(3.453, 1.713, 4.612)


def printed(shown: Table, width: int = 80, *, colours: bool = False) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False, force_terminal=colours)
    for part in terminal.screens(shown, width):
        console.print(part)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_nothing_is_cut_off_at_80_columns() -> None:
    out = printed(comparison(three()))
    assert "…" not in out
    assert "..." not in out
    assert max(map(len, out.splitlines())) <= 80
    assert out.count("nats/token") == 1
    assert all(word in out for word in ("3.200 [2.700, 3.700]", "0.75 [", "TFLOP", "MiB", "sliding"))


def test_a_phone_wide_terminal_shows_every_number() -> None:
    shown = comparison(three(), TableLayout(baselines=("window",)))
    out = printed(shown, 40)
    assert max(map(len, out.splitlines())) <= 40
    for row in range(len(shown.rows)):
        assert all(shown.text(row, column) in out for column in range(len(shown.columns)))


names = st.text("abcdefgh-", min_size=1, max_size=40)
labels = st.lists(
    st.tuples(names, st.sampled_from(["", "(K=32)", " (untrained)"])), min_size=1, max_size=5, unique=True
)


@settings(max_examples=40, deadline=None)
@given(labels, st.lists(st.tuples(names, st.sampled_from(["", "pg22/S1", "squad/512"])), max_size=9, unique=True))
def test_no_number_and_no_heading_is_lost(rows: list[tuple[str, str]], columns: list[tuple[str, str]]) -> None:
    heads = [column(name, group=group) for name, group in sorted(columns, key=lambda pair: pair[1])]
    cells = {
        f"{name}{rest}": [Cell(n + m / 10, 0.0, 9.0) for m in range(len(heads))] for n, (name, rest) in enumerate(rows)
    }
    shown = table(cells, heads)
    out = printed(shown)
    assert "…" not in out
    for n in range(len(shown.rows)):
        for m in range(len(heads)):
            assert shown.text(n, m) in out
    assert max(map(len, out.splitlines()), default=0) <= 80


def test_a_wide_table_becomes_several() -> None:
    columns = [column(f"metric_{n}", group=f"task {n // 3}") for n in range(9)]
    out = printed(table({"window": [WIDE] * 9, "full": [WIDE] * 9}, columns))
    assert out.count("window") == 3
    assert all(out.count(f"task {n}") == 1 for n in range(3))
    assert out.count("3.453 [1.713, 4.612]") == 18


def test_long_labels_have_notes_below() -> None:
    shown = table({"longmem(reduction=1,memory_layers=10-29)": [3.2]}, [NATS])
    assert "longmem [a]" in printed(shown)
    assert list(terminal.below(shown)) == ["[a] reduction=1, memory_layers=10-29", shown.caption]
    assert list(terminal.below(shown, notes=True))[2:] == ["* how_so."]


def test_marks_are_styles_that_the_caption_explains() -> None:
    shown = table({"window": [Cell(3.2, mark="second")], "full": [Cell(3.0, mark="best")], "x": [4]}, [NATS])
    out = printed(shown, colours=True)
    assert re.search(r"\x1b\[1m *3\.000", out)
    assert re.search(r"\x1b\[4m *3\.200", out)
    assert "Bold: the best, underlined: the second best" in list(terminal.below(shown))[-1]
    assert "Bold" not in next(iter(terminal.below(table({"x": [1]}, [NATS]))))


@pytest.mark.parametrize(
    ("heading", "lines"),
    [
        (NATS, ["nats/token"]),
        (STATE, ["state", "MiB"]),
        (
            column("nats/token at 4k - sliding(rank=16,targets=all)"),
            ["nats/token at 4k", "- sliding(", "rank=16,", "targets=all)"],
        ),
    ],
)
def test_headings_are_broken_into_short_lines(heading: Column, lines: list[str]) -> None:
    broken = terminal._heading(heading, with_group=False)
    assert "".join(broken).replace(" ", "") == "".join(lines).replace(" ", "")
    assert max(map(len, broken)) <= 16


def test_equal_first_labels_are_shown_once() -> None:
    shown = table({"pg22;window": [1.0], "pg22;full": [2.0], "squad;full": [3.0]}, [NATS], keys=("task", "method"))
    out = printed(shown)
    assert (out.count("pg22"), out.count("squad"), out.count("full")) == (1, 1, 2)
