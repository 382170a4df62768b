"""Which stored runs a table, picture or page shows: conditions, limits of cost, and the sentence on all others."""

from __future__ import annotations

import dataclasses
import fnmatch
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas

from contextlab.errors import UserError, listed, short, unknown
from contextlab.grammar import MARK
from contextlab.harness.stored import Result
from contextlab.reports.costs import MEBI, TERA, numbers
from contextlab.reports.dimensions import once
from contextlab.reports.frame import frame_of
from contextlab.reports.stored import summaries, unfinished

CONDITION = re.compile(r"\s*([a-z]\w*(?:\.\w+)?)\s*(<=|>=|!=|=|<|>)(.*)", re.DOTALL)
ORDERS: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
SHORTER = {"method": "name", "task": "benchmark"}
"""Columns with the names alone, of columns that have settings too."""
SETTINGS, METRIC = "settings.", "metric"
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
        fitting = frame[_fits(frame, condition)]
        if fitting.empty and not frame.empty:
            raise UserError(f"No result fits {short(condition)}: {_choices(frame, condition)}.")
        frame = fitting
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
    texts = ["" if missing else _text(cell) for cell, missing in zip(values, values.isna(), strict=True)]
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
    choices = (WORDS.get(choice, choice).replace("[", "[[]") for choice in pattern.split("|"))
    return any(fnmatch.fnmatchcase(text, accepted) for accepted in choices)


def _equal(text: str, value: str) -> bool:
    """Whether both are the same number."""
    try:
        return any(float(text) == float(choice) for choice in value.split("|"))
    except ValueError:
        return False


def _choices(frame: pandas.DataFrame, condition: str) -> str:
    column = _parsed(condition)[0]
    names = sorted({_text(cell) for cell in _column(frame, column).dropna()})
    more = ", ..." if len(names) > SHOWN else ""
    return f"its values are {', '.join(map(short, names[:SHOWN]))}{more}" if names else "all its values are missing"


FORM = re.compile(r"\s*(\w+)\s*(?:=|<=|<)\s*((?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*([A-Za-z]*)\s*")


PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30}


TIMES = {"s": 1.0, "ms": 1e-3, "min": 60.0, "h": 3600.0}


UNITS = {
    "B": {f"{prefix}B": size for prefix, size in PREFIXES.items()},
    "FLOP": {f"{prefix}{unit}": PREFIXES[prefix] for prefix in ("", "M", "G", "T", "P") for unit in ("FLOP", "FLOPs")},
    "s": TIMES,
}
"""Units by what they measure."""


@dataclasses.dataclass(frozen=True)
class Limit:
    """The most that a result may cost.

    Attributes:
        cost: one of `COSTS`.
        most: in bytes, FLOPs or seconds.
        text: as it was written.
    """

    cost: str
    most: float
    text: str

    @classmethod
    def parse(cls, text: str) -> Limit:
        """A limit as `state=32MB`.

        Raises:
            UserError: when it has another form, or an unknown cost or unit.
        """
        match = FORM.fullmatch(text)
        if match is None:
            raise UserError(f"'{short(text)}' is no limit: write a cost, = and a number with its unit, as state=32MB.")
        cost, number, unit = match.groups()
        if cost not in COSTS:
            raise unknown("cost", cost, COSTS)
        units = UNITS[COSTS[cost][0]]
        if unit not in units:
            raise unknown(f"unit of {cost}", unit, units)
        return cls(cost, float(number) * units[unit], text.strip())

    def holds(self, result: Result) -> bool:
        """Whether the result has this cost, and no more of it."""
        cost = COSTS[self.cost][1](result)
        return cost is not None and cost <= self.most


def under(results: Sequence[Result], limits: Sequence[Limit]) -> list[Result]:
    """The results within all limits.

    Raises:
        UserError: when none is.
    """
    kept_results = [result for result in results if all(limit.holds(result) for limit in limits)]
    if not kept_results:
        raise UserError(f"No result is under {', '.join(limit.text for limit in limits)}: raise the limit.")
    return kept_results


def _of(*names: str, scale: float) -> Callable[[Result], float | None]:
    """The sum of costs of a result; None where it has none of them."""

    def total(result: Result) -> float | None:
        costs = numbers(result)
        values = [costs[name].value for name in names if name in costs]
        return sum(values) * scale if values else None

    return total


COSTS: dict[str, tuple[str, Callable[[Result], float | None]]] = {
    "state": ("B", _of("state MiB", scale=MEBI)),
    "peak": ("B", _of("peak MiB", scale=MEBI)),
    "flops": ("FLOP", _of("TFLOPs contextualize", "TFLOPs query", scale=TERA)),
    "contextualize": ("FLOP", _of("TFLOPs contextualize", scale=TERA)),
    "query": ("FLOP", _of("TFLOPs query", scale=TERA)),
    "train": ("FLOP", _of("TFLOPs train", scale=TERA)),
    "seconds": ("s", _of("seconds", scale=1.0)),
}
"""Costs that can be limited, each with its unit and the number of a result."""


@dataclasses.dataclass(frozen=True)
class LeftOut:
    """Stored runs that are not shown.

    Attributes:
        stored: all runs below the folders, those that are shown and those that are not.
        reasons: how many runs every filter left out, with the words that say so.
    """

    stored: int
    reasons: tuple[tuple[int, str], ...] = ()

    def also(self, runs: int, reason: str) -> LeftOut:
        """These and further runs, for a reason as `by method!=closed-book`; the same where there are none.

        Args:
            runs: how many more runs the reason leaves out of those that were left.
            reason: words that can follow a number of runs.
        """
        return dataclasses.replace(self, reasons=(*self.reasons, (runs, reason))) if runs else self

    @property
    def sentence(self) -> str:
        """For a caption, without its full stop; empty where every stored run is shown."""
        if not self.reasons:
            return ""
        (first, reason), *rest = self.reasons
        noun = "run" if self.stored == 1 else "runs"
        return ", ".join([f"Left out: {first} of {self.stored} {noun} {reason}", *(f"{n} {why}" for n, why in rest)])


@dataclasses.dataclass(frozen=True)
class Selection:
    """The runs below some folders that a table, picture or page shows.

    Attributes:
        results: that fit, every run once, with those of their metrics that fit.
        left_out: how many runs are not among them, and by which filter.
        unfinished: folders of runs that have begun and not ended.
    """

    results: list[Result]
    left_out: LeftOut
    unfinished: list[Path]

    @property
    def unfinished_sentence(self) -> str:
        """Which runs are left out because they have not ended."""
        return f"left out, because unfinished: {listed([str(folder) for folder in self.unfinished])}."


def selection_of(
    folders: Sequence[Path | str],
    conditions: Sequence[str] = (),
    limits: Sequence[Limit] = (),
    *,
    by_metric: bool = False,
) -> Selection:
    """The runs below folders that fit all conditions and limits; every table, picture and page reads its runs here.

    Of a run that is stored several times the latest copy counts.

    Args:
        folders: of results.
        conditions: as `select` has them.
        limits: of costs.
        by_metric: whether conditions leave single metrics of a run out. Otherwise they choose runs, whose measure
            stays: costs are divided by what it counts.

    Raises:
        UserError: when a folder has no results or a broken one, for a wrong condition, or when no run is left.
    """
    if not by_metric and any(_parsed(condition)[0] == METRIC for condition in conditions):
        raise UserError(
            "--where chooses runs here, which have all their metrics: leave the condition on metric out; table and "
            "plot choose metrics with --metric."
        )
    copies = list({result.folder: result for folder in folders for result in summaries(folder)}.values())
    unfinished_runs = list(dict.fromkeys(path for folder in folders for path in unfinished(folder)))
    results = once(copies)
    left_out = LeftOut(len(copies) + len(unfinished_runs)).also(len(unfinished_runs), "unfinished")
    left_out = left_out.also(len(copies) - len(results), "stored again later")
    # The frame is made once: what a condition calls a method does not depend on the conditions before it.
    frame = frame_of(results)
    for condition in conditions:
        fitting = select(frame, [condition])
        left_out = left_out.also(frame["run"].nunique() - fitting["run"].nunique(), f"by {condition}")
        frame = fitting
    results = _of_frame(results, frame, by_metric=by_metric)
    for limit in limits:
        within = under(results, [limit])
        left_out = left_out.also(len(results) - len(within), f"by the limit {limit.text}")
        results = within
    return Selection(results, left_out, unfinished_runs)


def _of_frame(results: Sequence[Result], frame: pandas.DataFrame, *, by_metric: bool) -> list[Result]:
    """The results in a frame, with those of their metrics that are in it, and their measure where runs are chosen."""
    rows = frame.groupby("run", sort=False)[METRIC].agg(set).to_dict()
    chosen: list[Result] = []
    for result in results:
        if result.run_id in rows:
            names = rows[result.run_id] if by_metric else {*rows[result.run_id], result.measure.name}
            kept_metrics = {name: metric for name, metric in result.metrics.items() if name in names}
            chosen.append(result.model_copy(update={"metrics": kept_metrics}))
    return chosen
