"""What a page shows before an example is opened: runs with their metrics and costs, and groups of the same examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy
import pandas

from contextlab.reports.names import PLAIN, Names
from contextlab.reports.plots.observed import higher_is_better, runs_of
from contextlab.reports.plots.quality import COSTS, Cost, cost_of
from contextlab.reports.plots.style import POLYGONS, looks
from contextlab.reports.short_names import titles

COLUMNS = ("run", "method", "name", "task", "benchmark", "context", "backbone", "device", "dtype", "seed", "examples")
PARAGRAPHS = ("note", "source")


def overview(frame: pandas.DataFrame, names: Names = PLAIN) -> dict[str, Any]:
    """Runs in the order of the frame, and the groups of those that were measured on the same examples.

    Returns:
        `runs`: one object each, with `metrics` as [value, low, high, n], `measure`, `higher`, `costs`, `group` and
        `look`; `groups`: with the task and what its data are; `costs`: the words of the costs.
    """
    directions = {name: higher_is_better(frame, name) for name in frame["metric"].unique()}
    short = titles(frame["method"], names)
    keys = list(dict.fromkeys(zip(frame["task"], frame["data"], strict=True)))
    groups = [frame[(frame["task"] == task) & (frame["data"] == data)].iloc[0] for task, data in keys]
    runs = []
    for _, rows in frame.groupby("run", sort=False):
        measure = rows[rows["measure"].astype(bool)].iloc[0]
        row = runs_of(rows)[0]
        runs.append(
            {name: _plain(measure[name]) for name in COLUMNS}
            | {
                "short": short[row.method],
                "group": keys.index((row.task, row.data)),
                "measure": measure["metric"],
                "higher": directions[measure["metric"]],
                "metrics": {
                    one.metric: [_plain(v) for v in (one.value, one.low, one.high, one.n)] for one in runs_of(rows)
                },
                "costs": {cost: cost_of(row, cost) for cost in COSTS},
                "trained": _plain(row.train_tokens),
            }
        )
    for run, look in zip(runs, _looks(runs), strict=True):
        run["look"] = look
    return {
        "runs": runs,
        "groups": [{"task": one["task"], **{name: one[name] for name in PARAGRAPHS}} for one in groups],
        "costs": dict[Cost, str](COSTS),
    }


def _looks(runs: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Colour and shape of every method: those of pictures; a shape that the page does not have comes with its path."""
    forms = {(run["name"], run["method"]): None for run in runs}
    by_form = dict(zip(forms, looks(forms), strict=True))
    chosen = [by_form[run["name"], run["method"]] for run in runs]
    return [
        {"colour": one.colour, "marker": one.marker, "fill": one.fill, "path": _path(POLYGONS.get(one.marker, ()))}
        for one in chosen
    ]


def _path(corners: Sequence[tuple[float, float]]) -> str:
    """A polygon as SVG draws it, downwards and five units to each side; empty without corners."""
    return f"M{'L'.join(f'{5 * x:g} {-5 * y:g}' for x, y in corners)}Z" if corners else ""


def _plain(value: Any) -> Any:
    """A value that JSON has: no missing ones of pandas, and numbers of Python."""
    if pandas.isna(value):
        return None
    return value.item() if isinstance(value, numpy.generic) else value
