from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextlab.reports.plots.pairs import OTHERS
from contextlab.reports.plots.style import CONTROLS, LOOKS, looks

names = st.sampled_from([*LOOKS, "mine", "file.py:Mine", "theirs"])


def test_no_two_methods_have_one_look() -> None:
    assert len({marker for _, marker in LOOKS.values()}) == len(LOOKS)
    assert len(set(LOOKS.values())) == len(LOOKS)
    assert set(CONTROLS) == {f"own - {control}" for control in OTHERS}


@given(st.lists(names, max_size=6), st.lists(names, max_size=6))
def test_a_method_has_its_colour_and_marker_whatever_else_is_drawn(before: list[str], after: list[str]) -> None:
    alone = {name: looks([name])[0] for name in before}
    first = dict(reversed(list(zip([*before, *after], looks([*before, *after]), strict=True))))
    for name, look in alone.items():
        assert first[name] == look or name not in LOOKS


@given(st.lists(names, max_size=7))
def test_series_differ_without_colour(methods: list[str]) -> None:
    drawn = [(look.marker, look.fill) for look in looks(methods)]
    assert len(set(drawn)) == len(drawn)


@given(st.lists(names, min_size=1, max_size=7))
def test_forms_of_a_method_have_one_colour(methods: list[str]) -> None:
    colours: dict[str, set[str]] = {}
    for name, look in zip(methods, looks(methods), strict=True):
        colours.setdefault(name, set()).add(look.colour)
    assert all(len(one) == 1 for one in colours.values())


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
    for number, one in enumerate(common):
        for other in common[:number]:
            a, b = seen(LOOKS[one][0]), seen(LOOKS[other][0])
            assert sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) ** 0.5 > 0.05, (one, other)
