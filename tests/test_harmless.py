from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextlab import harmless

ANY = st.text(st.characters(), max_size=60) | st.text(st.characters(categories=["Cc", "Cf", "Cs", "Zl", "Zp"]))
DRAWN = ("ARABIC", "SYRIAC", "KAITHI", "EGYPTIAN")
"""Scripts whose format characters are drawn: signs before numbers, abbreviations, and joined hieroglyphs."""
BLANK = "\u115f\u1160\u2800\u3164\uffa0"
PLAIN = st.text(st.characters(codec="utf-8", categories=["L", "N", "S", "P"], exclude_characters=BLANK), max_size=60)


@given(ANY)
def test_nothing_that_a_terminal_acts_on_is_left(text: str) -> None:
    shown = harmless.text(text)
    unseen = ("Cc", "Cs", "Zl", "Zp")
    assert not [c for c in shown if unicodedata.category(c) in unseen and c not in "\n\t"]
    assert not set(shown) & set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
    shown.encode()
    assert harmless.text(shown) == shown
    line = harmless.line(text)
    assert "\n" not in line
    assert "\t" not in line
    assert harmless.line(line) == line


@pytest.mark.parametrize("character", "\xad\u200b\u200c\u200d\u2060\ufeff\u180e\u3164\u2800\ufe0f\U000e0041")
def test_a_character_that_cannot_be_seen_is_written_as_its_number(character: str) -> None:
    escaped = character.encode("unicode_escape").decode()
    for shown in (harmless.text, harmless.line, harmless.markdown, harmless.csv):
        assert shown(f"win{character}dow") == f"win{escaped}dow"


@given(st.text(st.characters(categories=["Cf"]), min_size=1))
def test_no_format_character_is_left_but_the_signs_that_are_drawn(text: str) -> None:
    left = {c for c in harmless.text(text) if unicodedata.category(c) == "Cf"}
    assert all(unicodedata.name(c).split(" ")[0] in DRAWN for c in left)


@given(PLAIN)
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert harmless.text(text) == harmless.line(text) == text


@given(ANY)
def test_markdown_has_no_tags_links_or_columns(text: str) -> None:
    shown = harmless.markdown(text)
    assert "<" not in shown
    assert "](" not in shown
    assert "][" not in shown
    assert "|" not in shown.replace(r"\|", "")


@given(st.sampled_from(["", " ", "\t", "\r", "\n"]), st.sampled_from(harmless.FORMULA), ANY)
def test_no_cell_begins_like_a_formula(space: str, sign: str, rest: str) -> None:
    cell = harmless.csv(space + sign + rest)
    assert cell[:1] in "'\\" or harmless.NUMBERS.fullmatch(cell)


@pytest.mark.parametrize("cell", ["+0.123", "-1.5e+07", "-0.150 [-0.200, +0.100]", "3.2 [2.7, 3.7]", "+inf", "12,345"])
def test_numbers_stay_numbers(cell: str) -> None:
    assert harmless.csv(cell) == harmless.markdown(cell) == cell


@pytest.mark.parametrize("cell", ["+1+1", "-1 [=1+1, 2]", "-cmd|' /C calc'!A0", "@SUM(1)", "=1", "-1, 2"])
def test_what_only_looks_like_a_number_is_text(cell: str) -> None:
    assert harmless.csv(cell) == f"'{cell}"
