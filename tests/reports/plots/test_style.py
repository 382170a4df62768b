from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextlab.reports.captions import CONTROLS as CONTEXTS
from contextlab.reports.plots.style import CONTROLS, LOOKS, OTHERS, broken, lines_of, looks, width_for

names = st.sampled_from([*LOOKS, "mine", "file.py:Mine", "theirs"])
FORMS = ("", "-difference", "(K=32)", "(rank=16,local=sliding)", "-c4", "-r8")
forms = st.tuples(names, st.sampled_from(FORMS)).map(lambda both: (both[0], "".join(both)))


def test_no_two_methods_have_one_look() -> None:
    assert len({marker for _, marker in LOOKS.values()}) == len(LOOKS)
    assert len(set(LOOKS.values())) == len(LOOKS)
    assert set(CONTROLS) == {f"own - {control}" for control in CONTEXTS}


@given(st.lists(st.sampled_from([*LOOKS]), max_size=12, unique=True))
def test_a_method_without_settings_has_its_colour_and_marker_whatever_else_is_drawn(methods: list[str]) -> None:
    for method, look in zip(
        dict.fromkeys(methods), looks((name, name) for name in dict.fromkeys(methods)), strict=True
    ):
        assert (look.colour, look.marker, look.fill) == (*LOOKS[method], "full")


@given(forms, st.lists(forms, max_size=6, unique=True))
def test_a_form_has_the_same_look_in_every_picture_without_other_forms(
    form: tuple[str, str], others: list[tuple[str, str]]
) -> None:
    beside = [other for other in others if other[0] in LOOKS and other[0] != form[0]]
    if form[0] in LOOKS:
        assert looks([*beside, form])[-1] == looks([form])[0]


@pytest.mark.parametrize("mark", ["", " (trained 61.4k)", " (untrained)"])
def test_a_mark_changes_no_look(mark: str) -> None:
    assert looks([("evalm", f"evalm-c4{mark}")]) == looks([("evalm", "evalm-c4")])
    assert looks([("evalm", f"evalm{mark}")])[0].marker == LOOKS["evalm"][1]


@given(st.lists(forms, max_size=12, unique=True))
def test_no_two_series_have_the_same_colour_and_marker(series: list[tuple[str, str]]) -> None:
    drawn = [(look.colour, look.marker, look.fill) for look in looks(series)]
    own = {name for name, _ in series if name not in LOOKS}
    assert len(set(drawn)) == len(drawn) or len(own) > len(OTHERS)


@given(st.lists(forms, min_size=1, max_size=7))
def test_forms_of_a_method_have_one_colour(series: list[tuple[str, str]]) -> None:
    colours: dict[str, set[str]] = {}
    for (name, _), look in zip(series, looks(series), strict=True):
        colours.setdefault(name, set()).add(look.colour)
    assert all(len(shades) == 1 for shades in colours.values())


@pytest.mark.parametrize("kind", ["protan", "deutan", "tritan"])
def test_the_methods_that_are_compared_most_are_told_apart_by_the_colour_blind(kind: str) -> None:
    # Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB.
    matrices = {
        "protan": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
        "deutan": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881)),
        "tritan": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.3039)),
    }

    def seen(colour: str) -> list[float]:
        rgb = [(int(colour[n : n + 2], 16) / 255) ** 2.2 for n in (1, 3, 5)]
        return [sum(a * b for a, b in zip(row, rgb, strict=True)) for row in matrices[kind]]

    common = ["full", "sliding", "retrieval", "longmem", "window"]
    for number, pair in enumerate(common):
        for other in common[:number]:
            a, b = seen(LOOKS[pair][0]), seen(LOOKS[other][0])
            assert sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) ** 0.5 > 0.05, (pair, other)


texts = st.text("ab ,(/=)-", max_size=60)


@given(texts, st.integers(3, 30))
def test_lines_hold_all_letters_and_are_not_too_long(text: str, width: int) -> None:
    lines = lines_of(text, width)
    assert max(map(len, lines)) <= width
    assert re.sub(r"\s", "", "".join(lines)) == re.sub(r"\s", "", text)


def test_settings_are_not_broken_within() -> None:
    text = "longmem(reduction=1,memory_layers=10-29,rank=16), trained"
    assert lines_of(text, 22) == ["longmem(reduction=1,", "memory_layers=10-29,", "rank=16), trained"]
    assert broken("short", 22) == "short"
    assert lines_of("x" * 25, 10) == ["x" * 10, "x" * 10, "x" * 5]


def test_a_word_that_is_too_long_is_broken_at_its_marks() -> None:
    assert lines_of("evalm(weights=evalm-c4-more/weights.safetensors)", 20) == [
        "evalm(weights=evalm-",
        "c4-more/",
        "weights.safetensors)",
    ]


def test_a_width_is_larger_where_a_text_needs_many_lines() -> None:
    assert width_for(["short"], (20, 26)) == 20
    assert width_for(["a, " * 24], (20, 26)) == 26
    assert width_for(["a, " * 99], (20, 26)) == 26
