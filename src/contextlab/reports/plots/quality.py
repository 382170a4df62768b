"""Pictures of quality: against cost, against the length of the context, by position, and by reach."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

import pandas

from contextlab.errors import UserError
from contextlab.reports.names import PLAIN, Names
from contextlab.reports.plots.observed import (
    POSITION,
    REACH,
    Observation,
    check_one,
    higher_is_better,
    measure_rows,
    metric_label,
    observe,
)
from contextlab.reports.plots.picture import FRONT, Axis, Guide, Panel, Picture, Scale, Series, front
from contextlab.reports.short_names import titles

Cost = Literal["flops", "state", "seconds"]
COSTS: dict[Cost, str] = {
    "flops": "TFLOPs per example",
    "state": "state in MiB",
    "seconds": "seconds per example",
}
SAME = ("context", "backbone", "dtype", "seed")
"""What all results of a picture have in common."""
DECADE = 8.0
"""Costs whose largest is this many times the smallest are drawn on a logarithmic axis."""
INTERVALS = "Bars are 95 % intervals over clusters (works, texts, conversations, tasks)."
PAIRED = "Differences are paired over the same examples."


def pareto(frame: pandas.DataFrame, x: Cost, metric: str | None, baseline: str | None, names: Names = PLAIN) -> Picture:
    """Quality against a cost, with the front of methods that no other beats in both.

    Raises:
        UserError: when results have several tasks or contexts, for seconds several devices, or no such cost.
    """
    columns = ("task", *SAME, *(["device"] if x == "seconds" else []))
    check_one(frame, columns, "Quality against cost is drawn for")
    rows = measure_rows(frame, metric)
    name = _one_metric(rows)
    observations = [(cost_of(one.run, x), one) for one in _observed(rows, baseline)]
    counted = [(cost, one) for cost, one in observations if cost is not None and cost > 0]
    if not counted:
        raise UserError(f"These results have no {COSTS[x]}: choose another cost with --x, or run `contextlab bench`.")
    higher = higher_is_better(frame, name)
    labels = titles((one.run.method for _, one in counted), names)
    series = [_series(labels, [one], [cost], line=False) for cost, one in counted]
    guides = _front([(cost, one.value) for cost, one in counted], higher) + _zero(baseline)
    costs = [cost for cost, _ in counted]
    panel = Panel(Axis(COSTS[x], _scale(costs)), _axis(name, higher, baseline, names), tuple(series), guides)
    words = f"{metric_label(name, None, baseline, names)} against {COSTS[x]}. {_front_words(higher)}"
    return Picture((panel,), _caption(words, rows, baseline))


def length(frame: pandas.DataFrame, metric: str | None, baseline: str | None, names: Names = PLAIN) -> Picture:
    """Quality against the tokens of the context, of all splits of one benchmark.

    Raises:
        UserError: when results have several benchmarks or contexts.
    """
    check_one(frame, ("benchmark", *SAME), "Quality against length is drawn for")
    rows = measure_rows(frame, metric)
    name = _one_metric(rows)
    observations = _observed(rows, baseline)
    labels = titles((one.run.method for one in observations), names)
    series = []
    for method in labels:
        own = sorted((tokens_of(one.run), one) for one in observations if one.run.method == method)
        series.append(_series(labels, [one for _, one in own], [tokens for tokens, _ in own], line=True))
    tokens = [x for one in series for x in one.x]
    scale: Scale = "log2" if max(tokens) > 2 * min(tokens) else "linear"
    higher = higher_is_better(frame, name)
    axis = Axis("tokens of the context", scale)
    panel = Panel(axis, _axis(name, higher, baseline, names), tuple(series), _zero(baseline), dodge=True)
    words = f"{metric_label(name, None, baseline, names)} against the mean number of tokens that are read"
    return Picture((panel,), _caption(f"{words}.", rows, baseline))


def position(frame: pandas.DataFrame, metric: str | None, baseline: str | None, names: Names = PLAIN) -> Picture:
    """A metric by the position of the tokens that it is measured on.

    Raises:
        UserError: when no metric is stored by position, or results have several tasks or contexts.
    """
    bins = _by(frame, metric, POSITION, "tokens", "position")
    ends = [*(int(label) for _, label in bins[1:]), None]
    spans = [f"{start}\N{EN DASH}{end}k" if end else f"{start}k on" for (_, start), end in zip(bins, ends, strict=True)]
    ticks = [(name, span) for (name, _), span in zip(bins, spans, strict=True)]
    return _by_bins(frame, names, ticks, POSITION, "position of the token", baseline)


def reach(frame: pandas.DataFrame, metric: str | None, baseline: str | None, names: Names = PLAIN) -> Picture:
    """A metric by the distance between a question and what it asks for.

    Raises:
        UserError: when no metric is stored by reach, or results have several tasks or contexts.
    """
    bins = _by(frame, metric, REACH, "reach", "reach")
    return _by_bins(frame, names, bins, REACH, "tokens back to the answer", baseline)


def cost_of(run: Any, x: Cost) -> float | None:
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
        named = f" of {metric}" if metric else ""
        raise UserError(f"These results hold no metric{named} by {word}: choose a task that stores one.")
    found = [(name, match[group]) for name, match in matches.items() if match and match["base"] == bases[0]]
    return sorted(found, key=lambda pair: thousands(pair[1]))


def _by_bins(
    frame: pandas.DataFrame,
    names: Names,
    bins: Sequence[tuple[str, str]],
    pattern: re.Pattern[str],
    words: str,
    baseline: str | None,
) -> Picture:
    """Lines over bins, which are metrics with the texts of their ticks."""
    places = {name: number for number, (name, _) in enumerate(bins)}
    rows = frame[frame["metric"].isin(list(places))]
    observations = _observed(rows, baseline)
    labels = titles((one.run.method for one in observations), names)
    series = []
    for method in labels:
        own = sorted((one for one in observations if one.run.method == method), key=lambda one: places[one.run.metric])
        series.append(_series(labels, own, [float(places[one.run.metric]) for one in own], line=True))
    match = pattern.fullmatch(bins[0][0])
    assert match is not None
    base = match["base"]
    higher = higher_is_better(frame, base)
    axis = Axis(words, ticks=tuple((float(number), text) for number, (_, text) in enumerate(bins)))
    panel = Panel(axis, _axis(base, higher, baseline, names), tuple(series), _zero(baseline), dodge=True)
    return Picture((panel,), _caption(f"{metric_label(base, None, baseline, names)} by {words}.", rows, baseline))


def _observed(rows: pandas.DataFrame, baseline: str | None) -> list[Observation]:
    observations = observe(rows, baseline)
    if not observations:
        raise UserError(f"No result shares examples with {baseline}: choose another --baseline.")
    return observations


def _one_metric(rows: pandas.DataFrame) -> str:
    check_one(rows, ("metric",), "A picture shows")
    return str(rows["metric"].iloc[0])


def _series(labels: dict[str, str], own: Sequence[Observation], x: Sequence[float], line: bool) -> Series:
    run = own[0].run
    intervals = tuple(one.interval for one in own)
    return Series(
        labels[run.method],
        run.name,
        tuple(map(float, x)),
        tuple(float(one.value) for one in own),
        intervals if any(intervals) else (),
        line=line,
    )


def _front(points: Sequence[tuple[float, float]], higher: bool | None) -> tuple[Guide, ...]:
    if higher is None or len(points) < 2:
        return ()
    best = [points[number] for number in front(points, higher)]
    # Between two methods of the front the better one costs too much: the front is a stair.
    corners = [best[0], *(corner for (_, y0), (x1, y1) in pairwise(best) for corner in ((x1, y0), (x1, y1)))]
    return (Guide(FRONT, "steps", tuple(x for x, _ in corners), tuple(y for _, y in corners)),)


def _front_words(higher: bool | None) -> str:
    return "" if higher is None else "No method beats those on the line in both."


def _zero(baseline: str | None) -> tuple[Guide, ...]:
    return (Guide("", "level", (), (0.0,)),) if baseline else ()


def _axis(metric: str, higher: bool | None, baseline: str | None, names: Names) -> Axis:
    return Axis(metric_label(metric, higher, baseline, names))


def _scale(values: Sequence[float]) -> Scale:
    return "log" if max(values) >= DECADE * min(values) else "linear"


def _caption(words: str, rows: pandas.DataFrame, baseline: str | None) -> str:
    """What is drawn, of which data and model, and what the bars are."""
    first = rows.iloc[0]
    data = "; ".join(dict.fromkeys(f"{one.task}: {one.note} ({one.source})" for one in rows.itertuples()))
    bars = [INTERVALS] if rows["low"].notna().any() else []
    paired = [PAIRED] if baseline else []
    common = f"Context {first.context}, backbone {first.backbone}, dtype {first['dtype']}, seed {first.seed}."
    return " ".join([f"{words[0].upper()}{words[1:]}".strip(), f"{data}.", common, *paired, *bars])
