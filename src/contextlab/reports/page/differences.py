"""Paired differences of the runs of a page to one method on the same examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from contextlab.benchmarks.task import Metric
from contextlab.errors import unknown
from contextlab.reports.plots.chosen import USUAL
from contextlab.reports.plots.observed import difference
from contextlab.reports.where import matching

SAME = ("task", "data", "context", "backbone", "dtype", "seed", "examples")
"""What runs have in common that are compared: everything but the method and the machine."""


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
