from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from contextlab.reports.plots.breaking import broken, lines_of, width_for

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
