"""The picture of what a question costs when several are asked about one context, and where methods break even."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pandas

from contextlab.errors import UserError
from contextlab.reports.amortised import Line
from contextlab.reports.names import PLAIN, Names
from contextlab.reports.plots.observed import check_one, measure_rows, runs_of
from contextlab.reports.plots.picture import Axis, Guide, Panel, Picture, Series
from contextlab.reports.plots.quality import COSTS, SAME, Cost
from contextlab.reports.short_names import titles

MOST = 10
"""Questions are drawn up to 2 to this power."""


def break_even(frame: pandas.DataFrame, x: Cost, names: Names = PLAIN) -> Picture:
    """Cost per question against the number of questions about one context.

    Raises:
        UserError: when results have several tasks, or read no context apart from the questions.
    """
    if x == "state":
        raise UserError("A state has no cost per question: choose flops or seconds with --x.")
    columns = ("task", *SAME, *(["device"] if x == "seconds" else []))
    check_one(frame, columns, "Cost per question is drawn for")
    rows = [row for row in runs_of(measure_rows(frame, None)) if not pandas.isna(row.contextualize_tokens)]
    costs = {row.method: (row, amortised(row, x)) for row in rows}
    known = {method: (row, cost) for method, (row, cost) in costs.items() if cost is not None}
    if not known:
        raise UserError("These results have no cost of a context apart from questions: choose a task with questions.")
    labels = titles(known, names)
    numbers = tuple(float(2**power) for power in range(MOST + 1))
    series = tuple(
        Series(labels[method], row.name, numbers, tuple(map(cost.each, numbers)), line=True)
        for method, (row, cost) in known.items()
    )
    points = crossings({labels[method]: cost for method, (_, cost) in known.items()})
    guides = tuple(Guide("", "upright", (number,)) for number, _, _ in points)
    unit = COSTS[x].replace("example", "question")
    panel = Panel(Axis("questions about one context", "log2"), Axis(unit, "log"), series, guides)
    return Picture((panel,), _caption(unit, points, rows))


def amortised(row: Any, x: Cost) -> Line | None:
    """The costs of one run; None where they were not counted."""
    context, query = (
        (row.contextualize_flops, row.query_flops) if x == "flops" else (row.contextualize_seconds, row.query_seconds)
    )
    if pandas.isna(context) or pandas.isna(query) or not row.examples:
        return None
    unit = 1e12 if x == "flops" else 1.0
    questions = row.n / row.examples
    return Line(float(context) / unit, float(query) / unit / questions)


def crossings(costs: dict[str, Line]) -> list[tuple[float, str, str]]:
    """Numbers of questions at which another method becomes the cheapest, with the earlier and the later one."""
    numbers = sorted({n for a in costs.values() for b in costs.values() if (n := a.meets(b)) is not None and n > 1})
    # Between two crossings one method is the cheapest throughout, so that any number there shows it.
    between = [(low + high) / 2 for low, high in pairwise([1.0, *numbers])] + [2 * max(numbers, default=1.0)]
    cheapest = [min(costs, key=lambda name: costs[name].each(number)) for number in between]
    changes = zip(numbers, pairwise(cheapest), strict=False)
    return [(number, before, after) for number, (before, after) in changes if before != after]


def _caption(unit: str, points: Sequence[tuple[float, str, str]], rows: Sequence[Any]) -> str:
    first = rows[0]
    changes = [
        f"For more than {int(number):,} questions {after} is cheaper than {before}." for number, before, after in points
    ]
    words = changes or ["One method is the cheapest for every number of questions."]
    common = f"Context {first.context}, backbone {first.backbone}, dtype {first.dtype}."
    data = f"{first.task}: {first.note} ({first.source})."
    about = f"{unit[0].upper()}{unit[1:]}, the context's share included, without training."
    return " ".join([about, *words, data, common])
