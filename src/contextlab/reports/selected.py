"""The results that fit conditions."""

from __future__ import annotations

from collections.abc import Sequence

from contextlab.reports.dimensions import Result
from contextlab.reports.frame import frame_of
from contextlab.reports.where import select


def selected(results: Sequence[Result], conditions: Sequence[str]) -> list[Result]:
    """The results that fit all conditions, with those of their metrics that fit.

    Raises:
        UserError: as `where.select`.
    """
    if not conditions:
        return list(results)
    metrics = select(frame_of(results), conditions).groupby("run", sort=False)["metric"].agg(set).to_dict()
    return [
        {**one, "metrics": {name: m for name, m in one["metrics"].items() if name in metrics[one["run_id"]]}}
        for one in results
        if one["run_id"] in metrics
    ]
