"""The numbers in the prose of pages are those of their tables."""

from __future__ import annotations

import bisect
import os
import re
from collections.abc import Sequence

import pytest
from pages import PAGES, text

NUMBER = r"([-+]?\d*\.?\d+)"
STATED = re.compile(rf"{NUMBER}(?: nats)? \[{NUMBER}, {NUMBER}\]")
IN_TABLES = re.compile(rf"{NUMBER} (?:\[|\| ){NUMBER}, {NUMBER}")
WITHOUT_TABLE = {("1.084", ".419", "1.527")}
"""All texts but one, which no table leaves out."""


def shows(cell: tuple[float, ...], stated: tuple[str, ...]) -> bool:
    """Whether a cell, or the opposite difference, is what a page states, with its digits."""
    value, low, high = cell
    near = [0.50001 * 10 ** -len(number.partition(".")[2]) for number in stated]
    return any(
        all(abs(float(number) - own) <= most for number, own, most in zip(stated, numbers, near, strict=True))
        for numbers in ((value, low, high), (-value, -high, -low))
    )


def test_every_interval_of_a_page_stands_in_a_table() -> None:
    contents = {page: text(page).replace("\N{MINUS SIGN}", "-") for page in PAGES}
    rows = [line for content in contents.values() for line in content.splitlines() if line.startswith("|")]
    cells = {tuple(map(float, cell)) for line in rows for cell in IN_TABLES.findall(line)}
    assert len(cells) > 1000
    for page, content in contents.items():
        prose = " ".join(" ".join(line for line in content.splitlines() if not line.startswith("|")).split())
        for stated in set(STATED.findall(prose)) - WITHOUT_TABLE:
            assert any(shows(cell, stated) for cell in cells), f"{page}: {stated} stands in no table"


@pytest.mark.parametrize(
    ("stated", "shown"),
    [
        ((".038", ".018", ".066"), True),
        (("-.038", "-.066", "-.018"), True),
        ((".038", "-.066", "-.018"), False),
        ((".038", ".018", ".067"), False),
        ((".04", ".02", ".07"), True),
    ],
)
def test_a_stated_interval_has_the_digits_and_the_sign_of_its_cell(stated: tuple[str, str, str], shown: bool) -> None:
    assert shows((0.0382, 0.0176, 0.0661), stated) == shown
    assert shows((-0.0382, -0.0661, -0.0176), stated) == shown


DECIMALS = re.compile(r"(?<![\w.])\d*\.\d{3,}(?![\w.]*\d)")
NOT_PROSE = re.compile(
    r"<!-- run: .*?<!-- end -->|```.*?```|`[^`]*`|\]\([^)]*\)|\[[-+\d., ]*\]|^(?: {4}|\|)[^\n]*",
    re.DOTALL | re.MULTILINE,
)
LINK = re.compile(r"\]\(([^)#:]+\.md)")
IN_NO_TABLE = {
    "CONTRIBUTING.md": {".001"},
    "docs/methods/evalm.md": {".0009"},
    "docs/training.md": {".119"},
    "docs/methods/least-squares.md": {"1.084", "3.212", "3.016", "3.214", "3.189", "3.224", "3.235", "3.218"},
}
"""A limit, a mean that its page describes, and what was looked at once, as its page says."""


def numbers_in_tables(page: str) -> set[float]:
    rows = [line for line in text(page).splitlines() if line.startswith("|")]
    return {float(number) for row in rows for number in re.findall(r"\d*\.?\d+(?:e-?\d+)?", row)}


def stands_among(stated: str, numbers: Sequence[float]) -> bool:
    """Whether one of the sorted numbers, rounded to the digits of what is stated, is that."""
    near = 0.50001 * 10 ** -len(stated.partition(".")[2])
    place = bisect.bisect_left(numbers, float(stated) - near)
    return place < len(numbers) and numbers[place] <= float(stated) + near


def test_every_number_in_prose_stands_in_a_table_of_its_page_or_of_one_that_it_links() -> None:
    """Of those with three digits after the point: shorter ones stand in some table by chance."""
    tables = {page: numbers_in_tables(page) for page in PAGES}
    checked = 0
    for page in PAGES:
        linked = {os.path.normpath(os.path.join(os.path.dirname(page), path)) for path in LINK.findall(text(page))}
        numbers = sorted(set().union(*(tables[other] for other in {page, *linked} & tables.keys())))
        for stated in set(DECIMALS.findall(NOT_PROSE.sub("", text(page)))) - IN_NO_TABLE.get(page, set()):
            checked += 1
            assert stands_among(stated, numbers), f"{page}: {stated} stands in no table of this page or of one it links"
    assert checked > 300


@pytest.mark.parametrize(("stated", "expected"), [(".139", True), ("0.1386", True), (".1385", False), (".140", False)])
def test_a_stated_number_is_a_rounded_one_of_the_tables(stated: str, expected: bool) -> None:
    assert stands_among(stated, [0.038, 0.1386, 3.2]) == expected
