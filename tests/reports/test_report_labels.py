from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from made_tables import NATS, table

from contextlab.reports.labels import chunks, letter, shortened

LONG = "longmem(reduction=1,memory_layers=10-29) (trained 61.4k)"


def test_what_makes_a_label_long_becomes_a_note() -> None:
    labels = shortened(table({"window": [1], LONG: [2], f"retrieval{LONG[7:]}": [3]}, [NATS]), 20)
    assert labels.rows == ((("window", ""),), (("longmem", "a"),), (("retrieval", "a"),))
    assert labels.notes == {"a": "reduction=1, memory_layers=10-29; trained 61.4k"}


def test_short_labels_stay_and_every_note_has_its_letter() -> None:
    labels = shortened(table({"longmem(K=32)": [1], "x(aaaaaaaaaaaa)": [2], "x(bbbbbbbbbbbb)": [3]}, [NATS]), 13)
    assert labels.rows == ((("longmem(K=32)", ""),), (("x", "a"),), (("x", "b"),))


def test_a_label_without_brackets_cannot_become_shorter() -> None:
    name = "a-method-with-a-very-long-name"
    assert shortened(table({name: [1], f"({name})": [1]}, [NATS]), 5).rows == (((name, ""),), ((f"({name})", ""),))


def test_letters_go_on() -> None:
    assert [letter(n) for n in (0, 25, 26, 51, 52, 701, 702)] == ["a", "z", "aa", "az", "ba", "zz", "aaa"]


widths = st.lists(st.integers(1, 30), min_size=1, max_size=12)


@given(widths, st.integers(1, 60), st.integers(1, 4))
def test_parts_hold_every_column_once_in_order_and_fit_where_a_column_does(
    sizes: list[int], room: int, per: int
) -> None:
    groups = [(str(n), list(range(n, min(n + per, len(sizes))))) for n in range(0, len(sizes), per)]
    parts = chunks(groups, sizes, room)
    assert [column for part in parts for column in part] == list(range(len(sizes)))
    assert all(sum(sizes[column] for column in part) <= room or len(part) == 1 for part in parts)


def test_groups_stay_together_where_they_fit() -> None:
    assert chunks([("a", [0, 1]), ("b", [2, 3])], [5, 5, 5, 5], 15) == [[0, 1], [2, 3]]
    assert chunks([("a", [0, 1]), ("b", [2, 3])], [5, 5, 5, 5], 20) == [[0, 1, 2, 3]]
    assert chunks([("a", [0, 1, 2])], [5, 5, 5], 10) == [[0, 1], [2]]
