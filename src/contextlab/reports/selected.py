"""The stored runs that fit conditions and limits, with the number of those that do not."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pandas

from contextlab.harness.stored import Result
from contextlab.reports.dimensions import once
from contextlab.reports.frame import frame_of
from contextlab.reports.left_out import LeftOut
from contextlab.reports.limits import Limit, under
from contextlab.reports.stored import summaries, unfinished
from contextlab.reports.where import select


@dataclasses.dataclass(frozen=True)
class Selection:
    """What a table, picture or page shows of the runs below some folders.

    Attributes:
        results: that fit, every run once, with those of their metrics that fit.
        left_out: how many runs are not among them, and by which filter.
        unfinished: folders of runs that have begun and not ended.
    """

    results: list[Result]
    left_out: LeftOut
    unfinished: list[Path]


def chosen(folders: Sequence[Path | str], conditions: Sequence[str] = (), limits: Sequence[Limit] = ()) -> Selection:
    """The runs below folders that fit all conditions and limits; every table, picture and page reads its runs here.

    Of a run that is stored several times the latest copy counts.

    Args:
        folders: of results.
        conditions: as `where.select` has them.
        limits: of costs.

    Raises:
        UserError: when a folder has no results or a broken one, for a wrong condition, or when no run is left.
    """
    copies = list({one.folder: one for folder in folders for one in summaries(folder)}.values())
    begun = list(dict.fromkeys(path for folder in folders for path in unfinished(folder)))
    results = once(copies)
    left_out = LeftOut(len(copies) + len(begun)).also(len(begun), "unfinished")
    left_out = left_out.also(len(copies) - len(results), "stored again later")
    # The frame is made once: what a condition calls a method does not depend on the conditions before it.
    frame = frame_of(results)
    for condition in conditions:
        fitting = select(frame, [condition])
        left_out = left_out.also(frame["run"].nunique() - fitting["run"].nunique(), f"by {condition}")
        frame = fitting
    results = _of_frame(results, frame)
    for limit in limits:
        within = under(results, [limit])
        left_out = left_out.also(len(results) - len(within), f"by the limit {limit.text}")
        results = within
    return Selection(results, left_out, begun)


def selected(results: Sequence[Result], conditions: Sequence[str]) -> list[Result]:
    """The results that fit all conditions, with those of their metrics that fit.

    Raises:
        UserError: as `where.select`.
    """
    return _of_frame(results, select(frame_of(results), conditions)) if conditions else list(results)


def _of_frame(results: Sequence[Result], frame: pandas.DataFrame) -> list[Result]:
    """The results in a frame, with those of their metrics that are in it."""
    metrics = frame.groupby("run", sort=False)["metric"].agg(set).to_dict()
    return [
        one.model_copy(update={"metrics": {name: m for name, m in one.metrics.items() if name in metrics[one.run_id]}})
        for one in results
        if one.run_id in metrics
    ]
