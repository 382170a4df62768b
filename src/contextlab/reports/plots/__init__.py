"""Pictures made from stored results, and from trainings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pandas

from contextlab.errors import UserError, unknown
from contextlab.reports.frame import frame_of
from contextlab.reports.names import PLAIN, Names
from contextlab.reports.plots.curves import training
from contextlab.reports.plots.pairs import controls, scatter
from contextlab.reports.plots.picture import Picture
from contextlab.reports.plots.quality import COSTS, Cost, length, pareto, position, reach
from contextlab.reports.plots.questions import break_even
from contextlab.reports.stored import summaries
from contextlab.reports.where import select

KINDS: Mapping[str, str] = {
    "pareto": "quality against FLOPs, state or time, with the Pareto front",
    "length": "quality against the length of the context",
    "position": "quality by the position of tokens in a text",
    "reach": "quality by the distance between a question and its answer",
    "break-even": "cost per question against the number of questions about one context",
    "scatter": "two methods, example by example",
    "controls": "what the own context gives beyond none and beyond a wrong one",
    "training": "losses and content gains of trainings",
}
"""What each kind of picture shows."""


def picture(
    kind: str,
    folders: Sequence[Path],
    *,
    where: Sequence[str] = (),
    x: str = "flops",
    metric: str | None = None,
    baseline: str | None = None,
    names: Names = PLAIN,
) -> Picture:
    """A picture of the results, or trainings, below folders.

    Args:
        kind: one of `KINDS`.
        folders: of results; of trainings for the kind `training`.
        where: conditions of `reports.where.select`.
        x: the cost, `flops`, `state` or `seconds`, where the picture has one.
        metric: that is drawn; the measure of the task when None.
        baseline: method whose paired difference is drawn; in a scatter the method on the horizontal axis.
        names: display names of methods and metrics.

    Raises:
        UserError: for an unknown name, or results that do not make such a picture.
    """
    if kind not in KINDS:
        raise unknown("kind of picture", kind, KINDS)
    if x not in COSTS:
        raise unknown("cost", x, COSTS)
    if kind == "training":
        return training(folders, names)
    _refuse(kind, {"baseline": baseline, "metric": metric})
    frame = select(frame_of([one for f in folders for one in summaries(f)]), where)
    return _of_results(kind, frame, names, x, metric, baseline)


def _of_results(
    kind: str, frame: pandas.DataFrame, names: Names, x: Cost, metric: str | None, baseline: str | None
) -> Picture:
    drawers: dict[str, Callable[[], Picture]] = {
        "pareto": lambda: pareto(frame, x, metric, baseline, names),
        "length": lambda: length(frame, metric, baseline, names),
        "position": lambda: position(frame, metric, baseline, names),
        "reach": lambda: reach(frame, metric, baseline, names),
        "break-even": lambda: break_even(frame, x, names),
        "scatter": lambda: scatter(frame, metric, baseline, names),
        "controls": lambda: controls(frame, metric, names),
    }
    return drawers[kind]()


def _refuse(kind: str, options: Mapping[str, str | None]) -> None:
    """Refuse options that a kind does not have."""
    without = {"break-even": ("baseline", "metric"), "controls": ("baseline",)}
    for name in without.get(kind, ()):
        if options[name] is not None:
            raise UserError(f"A picture of the kind {kind} has no --{name}: leave it out.")
