"""The first view of a page: runs with their metrics and costs, and groups of runs on the same examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy
import pandas

from contextlab import harmless
from contextlab.benchmarks.task import Metric
from contextlab.errors import unknown
from contextlab.reports.filters import matching
from contextlab.reports.names import PLAIN, Names, titles
from contextlab.reports.plots.chosen import USUAL
from contextlab.reports.plots.observed import difference, higher_is_better, runs_of
from contextlab.reports.plots.quality import COSTS, CostAxis, cost_of
from contextlab.reports.plots.style import POLYGONS, looks

COLUMNS = ("run", "method", "name", "task", "benchmark", "context", "backbone", "device", "dtype", "seed", "examples")
ABOUT = ("task", "examples", "note", "source")
"""Fields that describe a group of runs on the same examples."""


def overview(frame: pandas.DataFrame, names: Names = PLAIN, baseline: str | None = None) -> dict[str, Any]:
    """Runs in the order of the frame, and the groups of those that were measured on the same examples.

    Args:
        frame: of results.
        names: display names of methods.
        baseline: method to which differences are shown, as `baselines` chooses it.

    Returns:
        `runs`: one object each, with `metrics` and `difference` as [value, low, high, n], `against` whom that is,
        `measure`, `higher`, `costs`, `group` and `look`; `groups`: with the task and what its data are; `costs`: the
        words of the costs.

    Raises:
        UserError: when there is no such baseline.
    """
    directions = {name: higher_is_better(frame, name) for name in frame["metric"].unique()}
    short = titles(frame["method"], names)
    groups = {_group(row): row for row in reversed(runs_of(frame))}
    keys = list(dict.fromkeys(map(_group, runs_of(frame))))
    measures = runs_of(frame[frame["measure"].astype(bool)].drop_duplicates("run"))
    by_run = {run: runs_of(rows) for run, rows in frame.groupby("run", sort=False)}
    runs = [
        _run(measure, by_run[measure.run], short)
        | {"group": keys.index(_group(measure)), "higher": directions[measure.metric]}
        | _difference(measure, other, short)
        for measure, other in zip(measures, baselines(measures, baseline), strict=True)
    ]
    for run, look in zip(runs, _looks(runs), strict=True):
        run["look"] = look
    return {
        "runs": runs,
        "groups": [{name: _plain(getattr(groups[key], name)) for name in ABOUT} for key in keys],
        "costs": dict[CostAxis, str](COSTS),
    }


def _run(measure: Any, metrics: Sequence[Any], short: Mapping[str, str]) -> dict[str, Any]:
    """One run, from the row of its measure and those of all its metrics."""
    return {name: _plain(getattr(measure, name)) for name in COLUMNS} | {
        "short": harmless.line(short[measure.method]),
        "measure": measure.metric,
        "metrics": {
            metric.metric: [_plain(v) for v in (metric.value, metric.low, metric.high, metric.n)] for metric in metrics
        },
        "costs": {cost: cost_of(measure, cost) for cost in COSTS},
        "trained": _plain(measure.train_tokens),
    }


def _difference(measure: Any, other: Any | None, short: Mapping[str, str]) -> dict[str, Any]:
    """The paired difference of a run, and to whom it is."""
    change = against(measure, other)
    return {
        "difference": None if change is None else [change.value, change.low, change.high, change.n],
        "against": None if other is None else harmless.line(short[other.method]),
    }


def _group(row: Any) -> tuple[Any, ...]:
    """Equal for runs on the same examples."""
    return row.task, row.data, row.examples


def _looks(runs: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Colour and shape of every method: those of pictures; a shape that the page does not have comes with its path."""
    forms = {(run["name"], run["method"]): None for run in runs}
    by_form = dict(zip(forms, looks(forms), strict=True))
    chosen = [by_form[run["name"], run["method"]] for run in runs]
    return [
        {"colour": look.colour, "marker": look.marker, "fill": look.fill, "path": _path(POLYGONS.get(look.marker, ()))}
        for look in chosen
    ]


def _path(corners: Sequence[tuple[float, float]]) -> str:
    """A polygon as SVG draws it, downwards and five units to each side; empty without corners."""
    return f"M{'L'.join(f'{5 * x:g} {-5 * y:g}' for x, y in corners)}Z" if corners else ""


def _plain(value: Any) -> Any:
    """A value that JSON has: no missing ones of pandas, and numbers of Python; texts without unseen characters."""
    if pandas.isna(value):
        return None
    if isinstance(value, str):
        return harmless.line(value)
    return value.item() if isinstance(value, numpy.generic) else value


SAME = ("task", "data", "context", "backbone", "dtype", "seed", "examples")
"""Fields that are equal in runs that are compared: all but the method and the machine."""


def baselines(rows: Sequence[Any], baseline: str | None) -> list[Any]:
    """For every run that to which it is compared: of the named method, or else of `window`, or else the first one.

    Args:
        rows: of the frame, one for every run, each of the measure of its task.
        baseline: method as in tables, with or without its mark or its settings; None for the usual one.

    Raises:
        UserError: when there is no such method.
    """
    fits = matching(baseline or USUAL, [row.method for row in rows], [row.name for row in rows])
    if baseline is not None and not any(fits):
        raise unknown("method in these results", baseline, {row.method for row in rows})
    chosen: dict[tuple[Any, ...], Any] = {}
    for row, fit in zip(rows, fits, strict=True):
        if fit:
            chosen.setdefault(_key(row), row)
    if baseline is None:
        for row in rows:
            chosen.setdefault(_key(row), row)
    return [chosen.get(_key(row)) for row in rows]


def against(row: Any, baseline: Any | None) -> Metric | None:
    """The paired difference of a run to its baseline in the measure of its task; None for the baseline itself."""
    return None if baseline is None or row.run == baseline.run else difference(row, baseline)


def _key(row: Any) -> tuple[Any, ...]:
    return tuple(getattr(row, name) for name in SAME)
