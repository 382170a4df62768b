"""Pictures of paired comparisons: two methods example by example, and what a context gives beyond its controls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pandas

from contextlab.benchmarks.task import Metric
from contextlab.errors import UserError, unknown
from contextlab.reports.captions import CONTROLS, NO_CONTROL
from contextlab.reports.filters import LeftOut, matching
from contextlab.reports.plots import picture
from contextlab.reports.plots.chosen import (
    PictureOptions,
    equal_examples,
    measured,
    named,
    ranked,
    unique_titles,
    usual_baseline,
)
from contextlab.reports.plots.observed import (
    check_one,
    difference,
    example_values,
    higher_is_better,
    metric_label,
    runs_of,
)
from contextlab.reports.plots.picture import Axis, Guide, Panel, Picture, Series

ALIKE = ("backbone", "dtype", "seed")


def scatter(frame: pandas.DataFrame, options: PictureOptions, left_out: LeftOut) -> Picture:
    """The metric of every example under other methods against that under the baseline.

    Args:
        frame: of the results.
        options: what a user has chosen.
        left_out: the runs that are not in the frame.

    Raises:
        UserError: without two methods, or for several tasks or contexts.
    """
    check_one(frame, ("task", "context", *ALIKE), "Examples are drawn for")
    of_metric, left_out = measured(frame, options.metric, left_out)
    rows = runs_of(of_metric)
    baseline = options.baseline or usual_baseline(of_metric)
    if baseline is None:
        raise UserError("Examples are drawn of two methods or more: run `contextlab bench` with another one.")
    methods = [row.method for row in rows]
    fits = matching(baseline, methods, [row.name for row in rows])
    if sum(fits) != 1:
        raise unknown("single method in these results", str(baseline), methods)
    first = rows[fits.index(True)]
    labels = unique_titles(methods, options.names)
    own = example_values(first)
    clouds: dict[str, tuple[Any, list[tuple[float, float]]]] = {}
    for row in rows:
        other = example_values(row)
        points = [(own[name], other[name]) for name in own if name in other]
        if row.run != first.run and points:
            clouds[row.method] = (row, points)
    if not clouds:
        raise UserError(f"No result shares examples with {first.method}: choose another --baseline.")
    higher = higher_is_better(frame, first.metric)
    means = {label: (row.name, sum(y for _, y in points) / len(points)) for label, (row, points) in clouds.items()}
    chosen = named(ranked(means, higher), options)
    series = tuple(_cloud(labels[label], row, points, label not in chosen) for label, (row, points) in clouds.items())
    text = metric_label(first.metric, None, names=options.names)
    only = series[0].label if len(series) == 1 else "other methods"
    axes = (Axis(f"{text}, {labels[first.method]}"), Axis(f"{text}, {only}"))
    side = {True: "above the diagonal", False: "below the diagonal", None: ""}[higher]
    grey = [curve.label for curve in series if curve.quiet]
    without = len(rows) - 1 - len(clouds)
    missing = left_out.also(without, f"without examples of {labels[first.method]}")
    shown_rows = of_metric[of_metric["run"].isin([first.run, *(row.run for row, _ in clouds.values())])]
    caption = picture.caption(
        [f"{text} of every example under {only} against {labels[first.method]}, {picture.data_of(shown_rows)}"],
        [
            f"{side}: {labels[first.method]} is worse" if side else "",
            "larger with a number: several equal examples" if any(curve.notes for curve in series) else "",
            picture.grey_of(grey),
        ],
        missing,
    )
    return Picture((Panel(*axes, series, (Guide("", "equal"),)),), caption, picture.notes(shown_rows, grey))


def controls(frame: pandas.DataFrame, options: PictureOptions, left_out: LeftOut) -> Picture:
    """The gain of the own context over no context, and over a wrong one; the method with the largest gain is on top.

    Args:
        frame: of the results.
        options: what a user has chosen.
        left_out: the runs that are not in the frame.

    Raises:
        UserError: when no method was run with a control, or for several tasks.
    """
    check_one(frame, ("task", *ALIKE), "Gains are drawn for")
    of_metric, left_out = measured(frame, options.metric, left_out)
    check_one(of_metric, ("metric",), "A picture shows")
    rows, left_out = equal_examples(of_metric, left_out)
    by = {(row.method, row.context): row for row in runs_of(rows)}
    name = str(rows["metric"].iloc[0])
    sign = -1.0 if higher_is_better(frame, name) is False else 1.0
    gains = {context: _gains(by, context) for context in CONTROLS}
    by_control = {context: of_methods for context, of_methods in gains.items() if of_methods}
    if not by_control:
        raise UserError(NO_CONTROL)
    order = {method: sign * gain.value for of_methods in by_control.values() for method, gain in of_methods.items()}
    methods = sorted(order, key=lambda method: -order[method])
    series = tuple(_gain_series(context, of_methods, methods, sign) for context, of_methods in by_control.items())
    labels = unique_titles(methods, options.names)
    ticks = tuple((float(-n), labels[method]) for n, method in enumerate(methods))
    beyond = " and ".join(CONTROLS[context] for context in by_control)
    text = metric_label(name, None, names=options.names)
    axes = (Axis(f"gain in {text} beyond {beyond}"), Axis("", ticks=ticks))
    shown_rows = rows[rows["method"].isin(methods)]
    without = rows[~rows["method"].isin(methods)]["run"].nunique()
    caption = picture.caption(
        [f"Gain in {text} of the own context beyond {beyond}, {picture.data_of(shown_rows)}"],
        [
            "right of zero: the own context helps",
            picture.bars_of(shown_rows, any(curve.intervals for curve in series), paired=True),
        ],
        left_out.also(without, "without a control"),
    )
    panel = Panel(*axes, series, (Guide("", "upright", (0.0,)),), dodge=True)
    return Picture((panel,), caption, picture.notes(shown_rows[shown_rows["context"] == "own"]))


def _gains(by: Mapping[tuple[str, str], Any], context: str) -> dict[str, Metric]:
    """The paired differences of methods with their own context to those with another one."""
    both = {method: (row, by.get((method, context))) for (method, own), row in by.items() if own == "own"}
    gains = {method: difference(row, other) for method, (row, other) in both.items() if other is not None}
    return {method: gain for method, gain in gains.items() if gain is not None}


def _gain_series(context: str, gains: Mapping[str, Metric], methods: Sequence[str], sign: float) -> Series:
    shown = [(n, gains[method]) for n, method in enumerate(methods) if method in gains]
    intervals = tuple(
        None if gain.low is None or gain.high is None else _ordered(sign * gain.low, sign * gain.high)
        for _, gain in shown
    )
    x, y = tuple(sign * gain.value for _, gain in shown), tuple(float(-n) for n, _ in shown)
    label = f"own \N{MINUS SIGN} {context}"
    return Series(label, f"own - {context}", x, y, intervals if any(intervals) else (), along="x")


def _cloud(label: str, row: Any, points: Sequence[tuple[float, float]], quiet: bool) -> Series:
    """Points, with equal ones as one larger point and their number."""
    counts = Counter(points)
    several = max(counts.values()) > 1 and not quiet
    return Series(
        label,
        row.name,
        tuple(x for x, _ in counts),
        tuple(y for _, y in counts),
        form=row.method,
        notes=tuple(str(count) for count in counts.values()) if several else (),
        sizes=tuple(float(count) ** 0.5 for count in counts.values()) if several else (),
        quiet=quiet,
    )


def _ordered(first: float, second: float) -> tuple[float, float]:
    return min(first, second), max(first, second)
