"""Pictures of paired comparisons: two methods example by example, and what a context gives beyond its controls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pandas

from contextlab.errors import UserError, unknown
from contextlab.reports.names import PLAIN, Names
from contextlab.reports.plots.observed import (
    check_one,
    difference,
    example_values,
    higher_is_better,
    measure_rows,
    metric_label,
    runs_of,
)
from contextlab.reports.plots.picture import Axis, Guide, Panel, Picture, Series
from contextlab.reports.short_names import titles
from contextlab.reports.where import matching

ALIKE = ("backbone", "dtype", "seed")
OTHERS = {"none": "no context", "wrong": "a wrong one"}


def scatter(frame: pandas.DataFrame, metric: str | None, baseline: str | None, names: Names = PLAIN) -> Picture:
    """The metric of every example under one method against that under the baseline.

    Raises:
        UserError: without a baseline or another method, or for several tasks or contexts.
    """
    check_one(frame, ("task", "context", *ALIKE), "Examples are drawn for")
    rows = runs_of(measure_rows(frame, metric))
    if baseline is None and len(rows) != 2:
        raise UserError("Examples are drawn of two methods: name the one on the horizontal axis with --baseline.")
    methods = [row.method for row in rows]
    fits = matching(baseline, methods, [row.name for row in rows]) if baseline else [True, False]
    if sum(fits) != 1:
        raise unknown("single method in these results", str(baseline), methods)
    first = rows[fits.index(True)]
    short = titles(methods, names)
    own = example_values(first)
    series = []
    for row in rows:
        other = example_values(row)
        shared = [name for name in own if name in other]
        if row.run != first.run and shared:
            series.append(_cloud(short[row.method], row.name, [(own[name], other[name]) for name in shared]))
    if not series:
        raise UserError(f"No result shares examples with {first.method}: choose another --baseline.")
    higher = higher_is_better(frame, first.metric)
    only = short[rows[fits.index(False)].method] if len(series) == 1 and len(rows) == 2 else "other method"
    words = metric_label(first.metric, None, names=names)
    axes = (Axis(f"{words}, {short[first.method]}"), Axis(f"{words}, {only}"))
    panel = Panel(*axes, tuple(series), (Guide("", "equal"),))
    side = {True: "Above the diagonal", False: "Below the diagonal", None: "Off the diagonal"}[higher]
    better = f"{side} {short[first.method]} is worse." if higher is not None else ""
    drawn = f"Every point is an example; larger points with a number are several. {better}".strip()
    return Picture((panel,), f"{drawn} {first.task}: {first.note} ({first.source}). Backbone {first.backbone}.")


def controls(frame: pandas.DataFrame, metric: str | None, names: Names = PLAIN) -> Picture:
    """What the own context gives beyond none, and beyond a wrong one.

    Raises:
        UserError: when no method was run with a control, or for several tasks.
    """
    check_one(frame, ("task", *ALIKE), "Gains are drawn for")
    rows = measure_rows(frame, metric)
    check_one(rows, ("metric",), "A picture shows")
    by = {(row.method, row.context): row for row in runs_of(rows)}
    methods = [method for method, context in by if context == "own"]
    short = titles(methods, names)
    name = str(rows["metric"].iloc[0])
    sign = -1.0 if higher_is_better(frame, name) is False else 1.0
    series = []
    for context in OTHERS:
        pairs = [(n, by[m, "own"], by.get((m, context))) for n, m in enumerate(methods)]
        gains = [(n, difference(own, other)) for n, own, other in pairs if other is not None]
        known = [(n, gain) for n, gain in gains if gain is not None]
        if known:
            intervals = [
                None if gain.low is None or gain.high is None else _ordered(sign * gain.low, sign * gain.high)
                for _, gain in known
            ]
            x, y = tuple(sign * gain.value for _, gain in known), tuple(float(-n) for n, _ in known)
            series.append(
                Series(f"own \N{MINUS SIGN} {context}", f"own - {context}", x, y, tuple(intervals), along="x")
            )
    if not series:
        raise UserError("No method was run with a control: run `contextlab bench` with --context own,none,wrong first.")
    ticks = tuple((float(-n), short[method]) for n, method in enumerate(methods))
    axes = (Axis(f"gain in {metric_label(name, None, names=names)}"), Axis("", ticks=ticks))
    first = by[methods[0], "own"]
    drawn = {one.method.removeprefix("own - ") for one in series}
    others = " and ".join(f"beyond {words}" for context, words in OTHERS.items() if context in drawn)
    caption = (
        f"Gain of the own context {others}; right of zero it helps. Bars are 95 % "
        f"intervals of paired differences. {first.task}: {first.note} ({first.source}). Backbone {first.backbone}."
    )
    return Picture((Panel(*axes, tuple(series), (Guide("", "upright", (0.0,)),), dodge=True),), caption)


def _cloud(label: str, method: str, points: Sequence[tuple[float, float]]) -> Series:
    """Points, with equal ones as one larger point and their number."""
    counts = Counter(points)
    several = max(counts.values()) > 1
    return Series(
        label,
        method,
        tuple(x for x, _ in counts),
        tuple(y for _, y in counts),
        notes=tuple(str(count) for count in counts.values()) if several else (),
        sizes=tuple(float(count) ** 0.5 for count in counts.values()) if several else (),
    )


def _ordered(one: float, two: float) -> tuple[float, float]:
    return min(one, two), max(one, two)
