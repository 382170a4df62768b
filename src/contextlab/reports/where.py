"""Conditions on stored results, as `--where` has them: `task=pg22`, `n>3`, `settings.K=32|64`."""

from __future__ import annotations

import fnmatch
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pandas

from contextlab.errors import UserError, short, unknown
from contextlab.grammar import MARK

CONDITION = re.compile(r"\s*([a-z]\w*(?:\.\w+)?)\s*(<=|>=|!=|=|<|>)(.*)", re.DOTALL)
ORDERS: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
SHORTER = {"method": "name", "task": "benchmark"}
"""Columns with the names alone, of columns that have settings too."""
SETTINGS = "settings."
WORDS = {"true": "True", "false": "False"}
SHOWN = 8


def select(frame: pandas.DataFrame, conditions: Iterable[str]) -> pandas.DataFrame:
    """The rows of a frame that fit all conditions, in their order.

    A condition is a column, `=`, `!=`, `<`, `<=`, `>` or `>=`, and a value; `settings.K` is a setting of the method. In
    texts `*` and `?` stand for any characters or one; `a|b` fits both. A method or task is written as in tables,
    without its mark `(trained ...)`, or without its settings: the first of these forms that any row has. A missing
    value fits no condition but `!=`.

    Raises:
        UserError: for a condition that is none, an unknown column, a text where numbers are compared, or when no row is
            left.
    """
    for condition in conditions:
        kept = frame[_fits(frame, condition)]
        if kept.empty and not frame.empty:
            raise UserError(f"No result fits {short(condition)}: {_choices(frame, condition)}.")
        frame = kept
    return frame


def matching(pattern: str, names: Sequence[str], shorter: Sequence[str]) -> list[bool]:
    """Which names a pattern stands for: as they are, without marks, or by their shorter forms; the first that any fits.

    Args:
        pattern: perhaps with `*`, `?` and `|`.
        names: of methods or tasks as in tables.
        shorter: of each name, the name without settings.
    """
    forms = (names, [MARK.sub("", name).rstrip() for name in names], shorter)
    fits: list[bool] = []
    for form in forms:
        fits = [_like(name, pattern) for name in form]
        if any(fits):
            break
    return fits


def _fits(frame: pandas.DataFrame, condition: str) -> pandas.Series[bool]:
    column, sign, value = _parsed(condition)
    values = _column(frame, column)
    if sign in ORDERS:
        numbers = pandas.to_numeric(values, errors="coerce").astype("float64")
        return ORDERS[sign](numbers, _number(value, condition)) & numbers.notna()  # type: ignore[no-any-return]
    texts = ["" if missing else _text(one) for one, missing in zip(values, values.isna(), strict=True)]
    if column in SHORTER:
        fits = matching(value, texts, list(frame[SHORTER[column]].astype(str)))
    else:
        fits = [_like(text, value) or _equal(text, value) for text in texts]
    here = pandas.Series(fits, index=frame.index, dtype=bool) & values.notna()
    return here if sign == "=" else ~here


def _parsed(condition: str) -> tuple[str, str, str]:
    match = CONDITION.fullmatch(condition)
    value = match.group(3).strip() if match else ""
    if match is None or not value:
        raise UserError(f"'{short(condition)}' is no condition: write a column, a sign and a value, as n>3.")
    return match.group(1), match.group(2), value


def _column(frame: pandas.DataFrame, name: str) -> pandas.Series[Any]:
    if name.startswith(SETTINGS):
        return frame["settings"].str.get(name.removeprefix(SETTINGS))
    if name not in frame.columns:
        raise unknown("column", name, frame.columns)
    return frame[name]


def _number(value: str, condition: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise UserError(f"{short(condition)} compares with no number: write one, as n>3.") from None


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _like(text: str, pattern: str) -> bool:
    # Square brackets are part of names here, and stand for themselves.
    choices = (WORDS.get(one, one).replace("[", "[[]") for one in pattern.split("|"))
    return any(fnmatch.fnmatchcase(text, one) for one in choices)


def _equal(text: str, value: str) -> bool:
    """Whether both are the same number."""
    try:
        return any(float(text) == float(one) for one in value.split("|"))
    except ValueError:
        return False


def _choices(frame: pandas.DataFrame, condition: str) -> str:
    column = _parsed(condition)[0]
    names = sorted({_text(one) for one in _column(frame, column).dropna()})
    more = ", ..." if len(names) > SHOWN else ""
    return f"its values are {', '.join(map(short, names[:SHOWN]))}{more}" if names else "all its values are missing"
