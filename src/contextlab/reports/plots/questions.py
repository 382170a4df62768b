"""The picture of what a question costs when several are asked about one context, and where methods break even."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import pandas

from contextlab.errors import UserError
from contextlab.reports.break_even import CostLine, per_example, reads_again
from contextlab.reports.filters import LeftOut
from contextlab.reports.plots import picture
from contextlab.reports.plots.chosen import PictureOptions, equal_examples, named, unique_titles
from contextlab.reports.plots.observed import measure_rows, runs_of
from contextlab.reports.plots.picture import Axis, Guide, Panel, Picture, Series
from contextlab.reports.plots.quality import COSTS, CostAxis, check_costs_alike

LEAST, MOST = 10, 30
"""Questions are drawn up to 2 to one of these powers, as far as methods cross."""
SHOWN = 2
"""Changes of the cheapest method that a caption says."""


def break_even(frame: pandas.DataFrame, options: PictureOptions, left_out: LeftOut) -> Picture:
    """Cost per question against the number of questions about a context, training included.

    Args:
        frame: of the results.
        options: what a user has chosen.
        left_out: the runs that are not in the frame.

    Raises:
        UserError: when results have several tasks, or read no context apart from the questions.
    """
    x: CostAxis = options.x
    if x == "state":
        raise UserError("A state has no cost per question: choose flops or seconds with --x.")
    check_costs_alike(frame, x, "Cost per question is drawn for")
    rows, left_out = equal_examples(measure_rows(frame, None), left_out)
    lines = {row.method: (row, amortised(row, x, options.contexts)) for row in runs_of(rows)}
    by_method = {method: (row, cost) for method, (row, cost) in lines.items() if cost is not None}
    if not by_method:
        raise UserError("These results have no cost of a context apart from questions: choose a task with questions.")
    labels = unique_titles(by_method, options.names)
    points = crossings({labels[method]: cost for method, (_, cost) in by_method.items()})
    last = max([LEAST, *(math.ceil(math.log2(number)) + 1 for number, _, _ in points)])
    numbers = tuple(float(2**power) for power in range(min(last, MOST) + 1))
    order = sorted(by_method, key=lambda method: by_method[method][1].each(numbers[-1]))
    chosen = named([(method, by_method[method][0].name) for method in order], options)
    series = tuple(
        Series(
            labels[method], row.name, numbers, tuple(map(cost.each, numbers)), form=method, line=True,
            quiet=method not in chosen,
        )
        for method, (row, cost) in by_method.items()
    )  # fmt: skip
    guides = tuple(Guide("", "upright", (number,)) for number, _, _ in points if number <= numbers[-1])
    unit = COSTS[x].replace("example", "question")
    panel = Panel(Axis("questions about one context", "log2"), Axis(unit, "log"), series, guides, labels="ends")
    shown_rows = rows[rows["method"].isin(by_method)]
    grey = [curve.label for curve in series if curve.quiet]
    without = rows["run"].nunique() - len(by_method)
    missing = left_out.also(without, "without a context before its questions")
    about = f"{unit} with the context's share and that of training, {picture.data_of(shown_rows)}"
    legend = [_of_training(shown_rows, options.contexts), picture.grey_of(grey)]
    cheapest = labels[order[0]]
    return Picture(
        (panel,), picture.caption([about, _changes(points, cheapest)], legend, missing), picture.notes(shown_rows, grey)
    )


def amortised(row: Any, x: CostAxis, contexts: int = 1) -> CostLine | None:
    """The costs of one run: reading a context with the share of the training, and a question; None if not counted."""
    context, query, training = (
        (row.contextualize_flops, row.query_flops, row.train_flops)
        if x == "flops"
        else (row.contextualize_seconds, row.query_seconds, row.train_seconds)
    )
    if pandas.isna(context) or pandas.isna(query) or pandas.isna(row.contextualize_tokens) or not row.examples:
        return None
    unit = 1e12 if x == "flops" else 1.0
    questions = per_example(row.n, row.examples - row.skipped)
    once = 0.0 if pandas.isna(training) else float(training) / contexts
    if reads_again(row.split):
        return CostLine(once / unit, (float(context) + float(query)) / unit / questions)
    return CostLine((float(context) + once) / unit, float(query) / unit / questions)


def crossings(costs: Mapping[str, CostLine]) -> list[tuple[float, str, str]]:
    """Numbers of questions at which another method becomes the cheapest, with the earlier and the later one."""
    numbers = sorted({n for a in costs.values() for b in costs.values() if (n := a.meets(b)) is not None and n > 1})
    # Between two crossings one method is the cheapest throughout, so that any number there shows it.
    between = [(low + high) / 2 for low, high in pairwise([1.0, *numbers])] + [2 * max(numbers, default=1.0)]
    cheapest = [min(costs, key=lambda name: costs[name].each(number)) for number in between]
    changes = zip(numbers, pairwise(cheapest), strict=False)
    return [(number, before, after) for number, (before, after) in changes if before != after]


def _changes(points: Sequence[tuple[float, str, str]], cheapest: str) -> str:
    """Which method is the cheapest from where on."""
    if not points:
        return f"{cheapest} is the cheapest for every number of questions"
    parts = [
        f"for more than {int(number):,} questions {after} is cheaper than {before}" for number, before, after in points
    ]
    more = [f"{len(parts) - SHOWN} more changes"] if len(parts) > SHOWN else []
    return ", ".join([*parts[:SHOWN], *more])


def _of_training(rows: pandas.DataFrame, contexts: int) -> str:
    """How training is counted; empty where no method is trained."""
    trained = rows[rows["train_tokens"].notna()]
    if trained.empty:
        return ""
    uncounted = int(trained["train_flops"].isna().sum())
    unknown = f", and not known of {uncounted}" if uncounted else ""
    return f"training is counted once for {contexts:,} context{'s' * (contexts > 1)}{unknown}"
