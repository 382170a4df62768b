"""The results, and the rows of their frame, that fit conditions."""

from __future__ import annotations

from collections.abc import Sequence

import pandas

from contextlab.reports.dimensions import Result
from contextlab.reports.frame import frame_of
from contextlab.reports.where import select


def selected(results: Sequence[Result], conditions: Sequence[str]) -> tuple[list[Result], pandas.DataFrame]:
    """The results that fit all conditions, with those of their metrics that fit, and the frame of these.

    Names in the frame have the settings that distinguish what is left.

    Raises:
        UserError: as `where.select`.
    """
    frame = frame_of(results)
    if not conditions:
        return list(results), frame
    metrics = select(frame, conditions).groupby("run", sort=False)["metric"].agg(set).to_dict()
    left = [
        {**one, "metrics": {name: m for name, m in one["metrics"].items() if name in metrics[one["run_id"]]}}
        for one in results
        if one["run_id"] in metrics
    ]
    return left, frame_of(left)
