from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_tables import NATS, table
from stored_runs import three

from contextlab import grammar
from contextlab.errors import UserError
from contextlab.reports.cells import split_columns
from contextlab.reports.layout import TableLayout
from contextlab.reports.names import PLAIN, Names, letter, short_labels, short_methods, titles
from contextlab.reports.tables import comparison

FILE = """
method.longmem = "LongMem"
method."longmem(K=32)" = "LongMem, small"
method.full = "Full attention"
task.pg22 = "PG-22"
metric.nats_per_token = "NLL"
"""


@pytest.fixture
def names(tmp_path: Path) -> Names:
    path = tmp_path / "names.toml"
    path.write_text(FILE)
    return Names.read(path)


@pytest.mark.parametrize(
    ("label", "shown"),
    [
        ("longmem", "LongMem"),
        ("longmem(K=64) (untrained)", "LongMem(K=64) (untrained)"),
        ("longmem(K=32)", "LongMem, small"),
        ("longmem(K=32) (untrained)", "LongMem, small (untrained)"),
        ("longmemory", "longmemory"),
        ("longmem-difference", "longmem-difference"),
        ("window", "window"),
    ],
)
def test_the_longest_name_with_which_a_label_begins_is_replaced(names: Names, label: str, shown: str) -> None:
    assert names.of("method", label) == shown


def test_metrics_have_short_titles_without_names(names: Names) -> None:
    assert [Names().metric(metric) for metric in ("nats_per_token", "macro_f1")] == ["nats/token", "macro f1"]
    assert names.metric("nats_per_token") == "NLL"
    assert names.of("task", "pg22/S2") == "PG-22/S2"


def test_a_table_shows_the_names(names: Names) -> None:
    shown = comparison(three(max_context=8), TableLayout(names=names, baselines=("full",)))
    assert shown.rows == (("window",), ("sliding",), ("Full attention",))
    assert shown.columns[0].title == "NLL"
    assert shown.caption.startswith("PG-22/S2: real")
    assert any(note.startswith("Full attention starts again") for note in shown.notes)
    assert any("Full attention" in column.name for column in shown.columns)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('metod.x = "y"', "did you mean 'method'"),
        ("method.x = 3", 'write lines as method.label = "Name"'),
        ("method = 3", 'write lines as method.label = "Name"'),
        ("method.x = ", "is not TOML"),
        ("\xff", "is not TOML"),
    ],
)
def test_a_mistake_in_the_file_is_one_sentence(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "names.toml"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(UserError, match=message):
        Names.read(path)
    with pytest.raises(UserError, match="cannot be read"):
        Names.read(tmp_path / "absent.toml")


LONG = "reduction=1,memory_layers=10-29,softmax=joint"
labels = st.builds(
    lambda name, settings, mark: " ".join(word for word in (grammar.spelled(name, None, settings), mark) if word),
    st.sampled_from(["window", "longmem", "a.py:B"]),
    st.dictionaries(st.sampled_from("NMK"), st.sampled_from(["1", "2", None]), max_size=3),
    st.sampled_from(["", "(untrained)", "(trained 61.4k)", "(trained 2M)"]),
)


@pytest.mark.parametrize(
    ("given_labels", "expected"),
    [
        (["window", "full"], ["window", "full"]),
        (["window(N=512)", "full"], ["window", "full"]),
        (["window(N=512)", "window"], ["window(N=512)", "window"]),
        ([f"longmem({LONG})", f"longmem({LONG},M=0)"], ["longmem", "longmem(M=0)"]),
        (["longmem (untrained)", f"longmem({LONG}) (trained 61.4k)"], ["longmem, untrained", "longmem, trained"]),
        (["sliding(recent=null)", "sliding(recent=0)"], ["sliding(recent=null)", "sliding(recent=0)"]),
        (["hso (commit abc, run 1)"], ["hso (commit abc, run 1)"]),
    ],
)
def test_only_settings_that_differ_are_named(given_labels: list[str], expected: list[str]) -> None:
    assert list(short_methods(given_labels).values()) == expected


@given(st.lists(labels, max_size=8))
def test_different_methods_keep_different_names(names: list[str]) -> None:
    short = short_methods(names)
    assert set(short) == set(names)
    assert len(set(short.values())) == len(short)
    # What all settings tell apart is no longer than they are, but for the comma before the mark.
    assert all(len(text) <= len(name) + 1 for name, text in short.items())


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ({"longmem": "LongMem"}, ["LongMem, untrained", "LongMem, trained", "window"]),
        ({f"longmem({LONG})": "LongMem, best form"}, ["longmem, untrained", "LongMem, best form, trained", "window"]),
        ({"wind": "?", "window": "cold windows"}, ["longmem, untrained", "longmem, trained", "cold windows"]),
    ],
)
def test_titles_are_chosen_for_whole_labels_or_for_what_the_short_ones_begin_with(
    named: dict[str, str], expected: list[str]
) -> None:
    methods = ["longmem (untrained)", f"longmem({LONG}) (trained 61.4k)", "window"]
    assert list(titles(methods, Names({"method": named})).values()) == expected


@given(st.lists(labels, max_size=8))
def test_without_display_names_titles_are_the_short_names(methods: list[str]) -> None:
    assert titles(methods, PLAIN) == short_methods(methods)


LONG_LABEL = "longmem(reduction=1,memory_layers=10-29) (trained 61.4k)"


def test_what_makes_a_label_long_becomes_a_note() -> None:
    labels = short_labels(table({"window": [1], LONG_LABEL: [2], f"retrieval{LONG_LABEL[7:]}": [3]}, [NATS]), 20)
    assert labels.rows == ((("window", ""),), (("longmem", "a"),), (("retrieval", "a"),))
    assert labels.notes == {"a": "reduction=1, memory_layers=10-29; trained 61.4k"}


def test_short_labels_stay_and_every_note_has_its_letter() -> None:
    labels = short_labels(table({"longmem(K=32)": [1], "x(aaaaaaaaaaaa)": [2], "x(bbbbbbbbbbbb)": [3]}, [NATS]), 13)
    assert labels.rows == ((("longmem(K=32)", ""),), (("x", "a"),), (("x", "b"),))


def test_a_label_without_brackets_cannot_become_shorter() -> None:
    name = "a-method-with-a-very-long-name"
    assert short_labels(table({name: [1], f"({name})": [1]}, [NATS]), 5).rows == (((name, ""),), ((f"({name})", ""),))


def test_letters_go_on() -> None:
    assert [letter(n) for n in (0, 25, 26, 51, 52, 701, 702)] == ["a", "z", "aa", "az", "ba", "zz", "aaa"]


widths = st.lists(st.integers(1, 30), min_size=1, max_size=12)


@given(widths, st.integers(1, 60), st.integers(1, 4))
def test_parts_hold_every_column_once_in_order_and_fit_where_a_column_does(
    sizes: list[int], room: int, per: int
) -> None:
    groups = [(str(n), list(range(n, min(n + per, len(sizes))))) for n in range(0, len(sizes), per)]
    parts = split_columns(groups, sizes, room)
    assert [column for part in parts for column in part] == list(range(len(sizes)))
    assert all(sum(sizes[column] for column in part) <= room or len(part) == 1 for part in parts)


def test_groups_stay_together_where_they_fit() -> None:
    assert split_columns([("a", [0, 1]), ("b", [2, 3])], [5, 5, 5, 5], 15) == [[0, 1], [2, 3]]
    assert split_columns([("a", [0, 1]), ("b", [2, 3])], [5, 5, 5, 5], 20) == [[0, 1, 2, 3]]
    assert split_columns([("a", [0, 1, 2])], [5, 5, 5], 10) == [[0, 1], [2]]
