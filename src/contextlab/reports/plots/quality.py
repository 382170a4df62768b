"""Pictures of quality: against cost, against the length of the context, by position, and by reach."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

import pandas

from contextlab.errors import UserError
from contextlab.reports.filters import LeftOut
from contextlab.reports.plots import picture
from contextlab.reports.plots.chosen import PictureOptions, Shown, measured, named, ranked, shown
from contextlab.reports.plots.observed import (
    POSITION,
    REACH,
    Observation,
    check_one,
    higher_is_better,
    metric_label,
)
from contextlab.reports.plots.picture import FRONT, Axis, AxisScale, Guide, Panel, Picture, Series, front

CostAxis = Literal["flops", "state", "seconds"]
COSTS: dict[CostAxis, str] = {
    "flops": "TFLOPs per example",
    "state": "state in MiB",
    "seconds": "seconds per example",
}
SAME = ("context", "backbone", "dtype", "seed")
"""Fields that are equal in all results of a picture."""
DECADE = 8.0
"""Costs whose largest is this many times the smallest are drawn on a logarithmic axis."""


def pareto(frame: pandas.DataFrame, options: PictureOptions, left_out: LeftOut) -> Picture:
    """Quality against a cost, with the front of methods that no other beats in both.

    Args:
        frame: of the results.
        options: what a user has chosen.
        left_out: the runs that are not in the frame.

    Raises:
        UserError: when results have several tasks or contexts, for seconds several devices, or no such cost.
    """
    x: CostAxis = options.x
    check_costs_alike(frame, x, "Quality against cost is drawn for")
    rows, left_out = measured(frame, options.metric, left_out)
    name = _one_metric(rows)
    plot = shown(rows, options, left_out)
    # The baseline is a point as well, since it has a cost: its difference to itself is 0.
    runs = [*plot.observations, *(Observation(row, 0.0, None) for row in plot.baselines.values())]
    counted = {run.run.method: (cost, run) for run in runs if (cost := cost_of(run.run, x))}
    if not counted:
        raise UserError(f"These results have no {COSTS[x]}: choose another cost with --x, or run `contextlab bench`.")
    higher = higher_is_better(frame, name)
    points = [(cost, observation.value) for cost, observation in counted.values()]
    best = [list(counted)[number] for number in front(points, higher)] if higher is not None else []
    order = ranked(
        {label: (observation.run.name, observation.value) for label, (_, observation) in counted.items()}, higher
    )
    first = [*([plot.baseline] if plot.baseline else []), *reversed(best)]
    chosen = named(order, options, first)
    series = [_series(plot, [observation], [cost], False, chosen) for cost, observation in counted.values()]
    guides = _stair([points[list(counted).index(label)] for label in best]) + _zero(plot)
    axis = Axis(COSTS[x], _scale([cost for cost, _ in points]))
    panel = Panel(axis, _axis(name, higher, plot, options), tuple(series), guides, labels="points")
    uncounted = len(runs) - len(counted)
    missing = plot.left_out.also(uncounted, f"without {COSTS[x]}")
    about = f"{_metric(name, plot, options)} against {COSTS[x]}"
    return _picture(panel, about, rows, plot, missing, picture.STAIR if len(best) > 1 else "")


def length(frame: pandas.DataFrame, options: PictureOptions, left_out: LeftOut) -> Picture:
    """Quality against the tokens of the context, of all splits of one benchmark.

    Args:
        frame: of the results.
        options: what a user has chosen.
        left_out: the runs that are not in the frame.

    Raises:
        UserError: when results have several benchmarks or contexts.
    """
    check_one(frame, ("benchmark", *SAME), "Quality against length is drawn for")
    rows, left_out = measured(frame, options.metric, left_out)
    name = _one_metric(rows)
    plot = shown(rows, options, left_out)
    higher = higher_is_better(frame, name)
    lines = {label: sorted(own, key=lambda item: tokens_of(item.run)) for label, own in _by_method(plot).items()}
    chosen = named(_ranked_lines(lines, higher), options)
    series = [
        _series(plot, own, [tokens_of(observation.run) for observation in own], True, chosen) for own in lines.values()
    ]
    tokens = [x for curve in series for x in curve.x]
    scale: AxisScale = "log2" if max(tokens) > 2 * min(tokens) else "linear"
    axis = Axis("tokens of the context", scale)
    panel = Panel(axis, _axis(name, higher, plot, options), tuple(series), _zero(plot), dodge=True, labels="ends")
    about = f"{_metric(name, plot, options)} against the mean number of tokens that are read"
    return _picture(panel, about, rows, plot, plot.left_out)


def position(frame: pandas.DataFrame, options: PictureOptions, left_out: LeftOut) -> Picture:
    """A metric by the position of the tokens that it is measured on.

    Raises:
        UserError: when no metric is stored by position, or results have several tasks or contexts.
    """
    bins = _by(frame, options.metric, POSITION, "tokens", "position")
    ends = [*(int(label) for _, label in bins[1:]), None]
    spans = [f"{start}\N{EN DASH}{end}k" if end else f"{start}k on" for (_, start), end in zip(bins, ends, strict=True)]
    ticks = [(name, span) for (name, _), span in zip(bins, spans, strict=True)]
    return _by_bins(frame, options, left_out, ticks, POSITION, "position of the token")


def reach(frame: pandas.DataFrame, options: PictureOptions, left_out: LeftOut) -> Picture:
    """A metric by the distance between a question and what it asks for.

    Raises:
        UserError: when no metric is stored by reach, or results have several tasks or contexts.
    """
    bins = _by(frame, options.metric, REACH, "reach", "reach")
    return _by_bins(frame, options, left_out, bins, REACH, "tokens back to the answer")


def cost_of(run: Any, x: CostAxis) -> float | None:
    """A cost of a run per example, in the unit of its axis; None where it was not counted."""
    if x == "state":
        return None if pandas.isna(run.state_bytes) else float(run.state_bytes) / 2**20
    phases = {"flops": (run.contextualize_flops, run.query_flops, run.contextualize_tokens, run.query_tokens)}
    phases["seconds"] = (run.contextualize_seconds, run.query_seconds, run.contextualize_tokens, run.query_tokens)
    context, query, context_tokens, query_tokens = phases[x]
    spent = [cost for cost, tokens in ((context, context_tokens), (query, query_tokens)) if not pandas.isna(tokens)]
    if not spent or any(map(pandas.isna, spent)):
        return None
    return float(sum(spent)) / (1e12 if x == "flops" else 1.0)


def tokens_of(run: Any) -> float:
    """Tokens of the context, or of the text where there is no context apart."""
    return float(run.query_tokens if pandas.isna(run.contextualize_tokens) else run.contextualize_tokens)


def thousands(label: str) -> int:
    """The number that `512` or `4k` stands for."""
    return int(label.removesuffix("k")) * (1024 if label.endswith("k") else 1)


def _by(
    frame: pandas.DataFrame, metric: str | None, pattern: re.Pattern[str], group: str, word: str
) -> list[tuple[str, str]]:
    """Metrics that are stored by position or reach, with their bins, in the order of these."""
    check_one(frame, ("task", *SAME), f"A metric by {word} is drawn for")
    matches = {name: pattern.fullmatch(name) for name in frame["metric"].unique()}
    bases = [match["base"] for match in matches.values() if match and metric in (None, match["base"])]
    if not bases:
        of_metric = f" of {metric}" if metric else ""
        raise UserError(f"These results hold no metric{of_metric} by {word}: choose a task that stores one.")
    bins = [(name, match[group]) for name, match in matches.items() if match and match["base"] == bases[0]]
    return sorted(bins, key=lambda pair: thousands(pair[1]))


def _by_bins(
    frame: pandas.DataFrame,
    options: PictureOptions,
    left_out: LeftOut,
    bins: Sequence[tuple[str, str]],
    pattern: re.Pattern[str],
    along: str,
) -> Picture:
    """Lines over bins, which are metrics with the texts of their ticks."""
    places = {name: number for number, (name, _) in enumerate(bins)}
    rows = frame[frame["metric"].isin(list(places))]
    plot = shown(rows, options, left_out)
    match = pattern.fullmatch(bins[0][0])
    assert match is not None
    base = match["base"]
    higher = higher_is_better(frame, base)
    lines = {label: sorted(own, key=lambda item: places[item.run.metric]) for label, own in _by_method(plot).items()}
    chosen = named(_ranked_lines(lines, higher), options)
    series = [
        _series(plot, own, [float(places[observation.run.metric]) for observation in own], True, chosen)
        for own in lines.values()
    ]
    axis = Axis(along, ticks=tuple((float(number), text) for number, (_, text) in enumerate(bins)))
    panel = Panel(axis, _axis(base, higher, plot, options), tuple(series), _zero(plot), dodge=True, labels="ends")
    without = frame["run"].nunique() - rows["run"].nunique()
    missing = plot.left_out.also(without, f"without a metric by {along}")
    return _picture(panel, f"{_metric(base, plot, options)} by {along}", rows, plot, missing)


def _by_method(plot: Shown) -> dict[str, list[Observation]]:
    lines: dict[str, list[Observation]] = {}
    for observation in plot.observations:
        lines.setdefault(observation.run.method, []).append(observation)
    return lines


def _ranked_lines(lines: Mapping[str, Sequence[Observation]], higher: bool | None) -> list[tuple[str, str]]:
    """Methods by the mean of their values."""
    means = {
        label: (own[0].run.name, sum(observation.value for observation in own) / len(own))
        for label, own in lines.items()
    }
    return ranked(means, higher)


def check_costs_alike(frame: pandas.DataFrame, cost: CostAxis, why: str) -> None:
    """Refuse results of several tasks or circumstances, which seconds also have with the device.

    Raises:
        UserError: as `check_one`.
    """
    check_one(frame, ("task", *SAME, *(["device"] if cost == "seconds" else [])), why)


def _one_metric(rows: pandas.DataFrame) -> str:
    check_one(rows, ("metric",), "A picture shows")
    return str(rows["metric"].iloc[0])


def _series(plot: Shown, own: Sequence[Observation], x: Sequence[float], line: bool, chosen: Sequence[str]) -> Series:
    run = own[0].run
    quiet = run.method not in chosen
    intervals = () if quiet else tuple(observation.interval for observation in own)
    return Series(
        plot.labels[run.method],
        run.name,
        tuple(map(float, x)),
        tuple(float(observation.value) for observation in own),
        intervals if any(intervals) else (),
        line=line,
        form=run.method,
        quiet=quiet,
    )


def _stair(best: Sequence[tuple[float, float]]) -> tuple[Guide, ...]:
    """The front through points by their costs: between two of them the better one costs too much, so it is a stair."""
    if len(best) < 2:
        return ()
    corners = [best[0], *(corner for (_, y0), (x1, y1) in pairwise(best) for corner in ((x1, y0), (x1, y1)))]
    return (Guide(FRONT, "steps", tuple(x for x, _ in corners), tuple(y for _, y in corners)),)


def _zero(plot: Shown) -> tuple[Guide, ...]:
    return (Guide("", "level", (), (0.0,)),) if plot.baseline else ()


def _metric(metric: str, plot: Shown, options: PictureOptions) -> str:
    return metric_label(metric, None, plot.against, options.names)


def _axis(metric: str, higher: bool | None, plot: Shown, options: PictureOptions) -> Axis:
    return Axis(metric_label(metric, higher, plot.against, options.names))


def _scale(values: Sequence[float]) -> AxisScale:
    return "log" if max(values) >= DECADE * min(values) else "linear"


def _picture(
    panel: Panel, about: str, rows: pandas.DataFrame, plot: Shown, left_out: LeftOut, legend: str = ""
) -> Picture:
    """A panel with its caption: what is drawn, of which data and model, what the bars are, and what is left out."""
    run_ids = {observation.run.run for observation in plot.observations}
    of_drawn = rows[rows["run"].isin(run_ids)]
    grey = [curve.label for curve in panel.series if curve.quiet]
    bars = picture.bars_of(of_drawn, any(curve.intervals for curve in panel.series), plot.baseline is not None)
    caption = picture.caption(
        [f"{about}, {picture.data_of(of_drawn)}"], [bars, legend, picture.grey_of(grey)], left_out
    )
    return Picture((panel,), caption, picture.notes(of_drawn, grey))
