from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stored_runs import result

from contextlab import grammar
from contextlab.cards import short_count
from contextlab.harness import labels
from contextlab.harness.selection import select

LENGTHS = st.none() | st.integers(1, 99_999)
NAMES = st.text(min_size=1, max_size=8).filter(lambda text: bool(text.strip()))
SETTINGS = st.dictionaries(
    st.from_regex(r"[a-z]{1,4}", fullmatch=True), st.text(max_size=6) | st.lists(st.integers()), max_size=2
)


@given(NAMES, SETTINGS, st.booleans())
def test_the_label_of_a_method_names_it(name: str, settings: dict[str, Any], untrained: bool) -> None:
    label = labels.of_method(name, settings, untrained=untrained)
    assert grammar.single(label, "method") == grammar.NamedItem(name, None, settings)
    assert label.endswith(grammar.UNTRAINED) == untrained


@given(NAMES, SETTINGS, st.integers(1, 10**12))
def test_the_label_of_a_trained_method_names_it(name: str, settings: dict[str, Any], tokens: int) -> None:
    label = labels.of_method(name, settings, trained=tokens)
    assert grammar.single(label, "method") == grammar.NamedItem(name, None, settings)
    assert label.endswith(f" (trained {short_count(tokens)})")


def test_a_run_is_marked_by_what_it_stores() -> None:
    assert labels.of_run(result("longmem"), {}) == "longmem"
    assert labels.of_run(result("longmem", untrained=True), {"K": 8}) == "longmem(K=8) (untrained)"
    training = {"flops": None, "seconds": 1.0, "tokens": 1_200_000}
    assert labels.of_run(result("longmem", cost={"train": training}), {}) == "longmem (trained 1.2M)"


@given(NAMES, NAMES, SETTINGS, LENGTHS, LENGTHS)
def test_the_label_of_a_task_names_it(
    name: str, split: str, settings: dict[str, Any], history: int | None, tokens: int | None
) -> None:
    lengths = {"history": history, "tokens": tokens}
    label = labels.of_task(name, grammar.spelled_split(split, settings), lengths)
    set_lengths = {key: str(value) for key, value in lengths.items() if value is not None}
    assert grammar.single(label, "task") == grammar.NamedItem(name, split, {**settings, **set_lengths})


def test_splits_of_earlier_versions_are_shown_as_they_are() -> None:
    stored = result(task="icl", split="sst2:k=4,n=3", tokens=7)
    assert labels.of_result(stored) == "icl/'sst2:k=4,n=3'(tokens=7)"
    assert labels.of_result(result(task="icl", split="sst2:k=4")) == "icl/sst2:k=4"


@pytest.mark.parametrize("text", ["longmem(K=32)", "window", "hso(k=10,lr=0.01)", "dynamic-eval(rule=sgd)"])
def test_a_selected_methods_label_selects_it_again(text: str) -> None:
    (selected,), _ = select(text, "needle")
    (again,), _ = select(f"{selected.label} {grammar.UNTRAINED}", "needle")
    assert again == selected
