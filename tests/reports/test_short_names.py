from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextlab import grammar
from contextlab.reports.names import PLAIN, Names
from contextlab.reports.short_names import shortened, titles

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
    assert list(shortened(given_labels).values()) == expected


@given(st.lists(labels, max_size=8))
def test_different_methods_keep_different_names(names: list[str]) -> None:
    short = shortened(names)
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
    assert titles(methods, PLAIN) == shortened(methods)
