from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextlab import grammar
from contextlab.errors import UserError
from contextlab.grammar import NamedItem

ODD = st.text(st.sampled_from("ab.py:/,=()[]{}'\" \t|*0-"), max_size=12)
TEXTS = st.one_of(ODD, st.text(max_size=12))
NAMES = TEXTS.filter(lambda text: bool(text.strip()))
KEYS = st.from_regex(r"[A-Za-z_]\w{0,8}", fullmatch=True)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
).filter(lambda value: value is None or isinstance(value, list | dict))
VALUES = st.one_of(TEXTS, JSON)
SETTINGS = st.dictionaries(KEYS, VALUES, max_size=3)
METHODS = st.builds(NamedItem, NAMES, st.none(), SETTINGS)
TASKS = st.builds(NamedItem, NAMES, st.none() | TEXTS, SETTINGS)


@given(st.lists(TASKS, min_size=1, max_size=3))
def test_tasks_that_are_spelled_are_read_back(listed: list[NamedItem]) -> None:
    texts = [grammar.spelled(item.name, item.split, item.settings) for item in listed]
    assert grammar.items(",".join(texts), "task") == listed
    assert grammar.items(" , ".join(texts), "task") == listed
    assert grammar.items(texts, "task") == listed


@given(st.lists(METHODS, min_size=1, max_size=3))
def test_methods_that_are_spelled_are_read_back(listed: list[NamedItem]) -> None:
    text = ", ".join(grammar.spelled(item.name, None, item.settings) for item in listed)
    assert grammar.items(text, "method") == listed
    marked = f"{grammar.spelled(listed[0].name, None, listed[0].settings)} {grammar.UNTRAINED}"
    assert grammar.single(marked, "method") == listed[0]


@given(NAMES, SETTINGS)
def test_splits_and_settings_alone_are_read_back(name: str, settings: dict[str, Any]) -> None:
    assert grammar.split(grammar.spelled_split(name, settings)) == NamedItem(name, None, settings)
    pairs = ",".join(f"{key}={grammar.spelled_value(value)}" for key, value in settings.items())
    assert grammar.settings(pairs, "it") == settings


@given(VALUES)
def test_a_value_that_is_spelled_is_read_back(value: Any) -> None:
    assert grammar.value(grammar.spelled_value(value), "it") == value


@given(st.one_of(TEXTS, st.text(st.sampled_from("ab,=()[]{}'\" /"), max_size=30)), st.sampled_from(["method", "task"]))
def test_any_text_gives_items_or_one_sentence(text: str, kind: Any) -> None:
    for read in (lambda: grammar.items(text, kind), lambda: grammar.split(text), lambda: grammar.settings(text, "it")):
        try:
            message = str(read())[:1] and "."
        except UserError as error:
            message = str(error)
        assert message[-1] in ".?"
        assert len(message) < 1000


@pytest.mark.parametrize(
    ("text", "listed"),
    [
        ("window", [NamedItem("window")]),
        (" window , ,full,", [NamedItem("window"), NamedItem("full")]),
        (
            "longmem(K=32, csz = 4 ),longmem",
            [NamedItem("longmem", None, {"K": "32", "csz": "4"}), NamedItem("longmem")],
        ),
        ("longmem ( K = 32 )", [NamedItem("longmem", None, {"K": "32"})]),
        ("longmem()", [NamedItem("longmem")]),
        (
            "longmem (untrained),longmem(K=8) (untrained)",
            [NamedItem("longmem"), NamedItem("longmem", None, {"K": "8"})],
        ),
        (
            "longmem (trained 1.2M),longmem(K=8) (trained 950)",
            [NamedItem("longmem"), NamedItem("longmem", None, {"K": "8"})],
        ),
        ("a/b.py:C(x=1)", [NamedItem("a/b.py:C", None, {"x": "1"})]),
        ("'a (1),b/c.py:C'(x=1)", [NamedItem("a (1),b/c.py:C", None, {"x": "1"})]),
        ("m(x=f(1,2),y=*.[01])", [NamedItem("m", None, {"x": "f(1,2)", "y": "*.[01]"})]),
        ("m(x='1,2)',y=\"it's\",z='it''s')", [NamedItem("m", None, {"x": "1,2)", "y": "it's", "z": "it's"})]),
        (
            "m(x=[1, [2]],y=null,z='null',w={\"a\": 1})",
            [NamedItem("m", None, {"x": [1, [2]], "y": None, "z": "null", "w": {"a": 1}})],
        ),
        ("m(x=a=b,y='')", [NamedItem("m", None, {"x": "a=b", "y": ""})]),
    ],
)
def test_methods_are_read_as_documented(text: str, listed: list[NamedItem]) -> None:
    assert grammar.items(text, "method") == listed


@pytest.mark.parametrize(
    ("text", "listed"),
    [
        ("pg22/S1(tokens=8192),needle", [NamedItem("pg22", "S1", {"tokens": "8192"}), NamedItem("needle")]),
        ("needle(tokens=5)", [NamedItem("needle", None, {"tokens": "5"})]),
        ("a/b.py:C/short", [NamedItem("a/b.py:C", "short")]),
        ("a/b.py:C", [NamedItem("a/b.py:C")]),
        ("'a/b'/ c ", [NamedItem("a/b", "c")]),
        ("task/'a,b'(k=1)", [NamedItem("task", "a,b", {"k": "1"})]),
        ("task/a:b", [NamedItem("task", "a:b")]),
    ],
)
def test_tasks_are_read_as_documented(text: str, listed: list[NamedItem]) -> None:
    assert grammar.items(text, "task") == listed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "No method is named"),
        (" ,", "No method is named"),
        ("longmem(K=32", "The bracket after longmem is not closed: write longmem(K=32)."),
        ("longmem(", "The bracket after longmem is not closed: write longmem(key=value)."),
        ("longmem(K)", "'K' of longmem has no value: write longmem(K=value)."),
        ("longmem(K=)", "There is no value for K of longmem"),
        ("longmem(K=1,K=1)", "longmem is given K twice: keep one of the two."),
        ("longmem(K=1)x", "'x' stands after longmem: put a comma between two methods."),
        ("longmem(K=[1)", "The value of K of longmem is not valid JSON"),
        ("longmem(K='1)", "The quotation of the value of K of longmem has no end: close it with '."),
        ("longmem(K='1'2)", "'2)' stands after K of longmem: put a comma between them."),
        ("(K=1)", "'(K=1)' has no name before it: begin with the name of the method."),
        ("'longmem", "The quotation of a method has no end"),
    ],
)
def test_what_does_not_follow_the_grammar_is_one_sentence(text: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        grammar.items(text, "method")
    assert message in str(error.value)


def test_a_stroke_must_be_followed_by_a_split() -> None:
    with pytest.raises(UserError, match="No split stands after 'pg22/': name one, or leave the stroke away"):
        grammar.items("pg22/(tokens=1)", "task")


def test_where_one_is_wanted_several_are_refused() -> None:
    with pytest.raises(UserError, match="'window,full' names 2 methods: name one of them"):
        grammar.single("window,full", "method")
    with pytest.raises(UserError, match="'a,b' is no split"):
        grammar.split("a,b")


def test_a_value_of_set_is_text_unless_it_is_json_or_quoted() -> None:
    plain = ["", " a ", "x=y", "1,2)", "a'b", "nan"]
    assert [grammar.value(text, "it") for text in plain] == plain
    assert [grammar.value(text, "it") for text in ("null", "[1, 2]", "'[1]'")] == [None, [1, 2], "[1]"]
    with pytest.raises(UserError, match="'x' stands after the value of it"):
        grammar.value("[1]x", "it")


@given(st.text(min_size=1, max_size=8).filter(lambda text: bool(text.strip())), st.sampled_from([{}, {"K": "3"}]))
def test_a_method_is_read_back_whatever_its_name(name: str, settings: dict[str, str]) -> None:
    assert grammar.single(grammar.spelled_method(name, settings), "method") == grammar.NamedItem(name, None, settings)


def test_a_stroke_needs_no_quotes_in_a_method() -> None:
    assert grammar.spelled_method("runs/one", {"K": 3}) == "runs/one(K=3)"
