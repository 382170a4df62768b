"""Pictures made from stored results, and from trainings."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pandas

from contextlab.errors import UserError, unknown
from contextlab.reports.alike import check_alike, mixtures, of_weights
from contextlab.reports.filters import LeftOut, Limit, selection_of
from contextlab.reports.frame import frame_of
from contextlab.reports.plots.chosen import PictureOptions
from contextlab.reports.plots.curves import training
from contextlab.reports.plots.lengths import effective_length
from contextlab.reports.plots.pairs import controls, scatter
from contextlab.reports.plots.picture import Picture
from contextlab.reports.plots.quality import COSTS, length, pareto, position, reach
from contextlab.reports.plots.questions import break_even

KINDS: Mapping[str, str] = {
    "pareto": "quality against FLOPs, state or time, with the Pareto front",
    "length": "quality against the length of the context",
    "effective-length": "the share of the score at the shortest length that longer ones keep",
    "position": "quality by the position of tokens in a text",
    "reach": "quality by the distance between a question and its answer",
    "break-even": "cost per question against the number of questions about one context",
    "scatter": "two methods, example by example",
    "controls": "what the own context gives beyond none and beyond a wrong one",
    "training": "losses and content gains of trainings",
}
"""The content of each kind of picture."""
DRAWERS: Mapping[str, Callable[[pandas.DataFrame, PictureOptions, LeftOut], Picture]] = {
    "pareto": pareto,
    "length": length,
    "position": position,
    "reach": reach,
    "break-even": break_even,
    "scatter": scatter,
    "controls": controls,
}
WITHOUT = {
    "break-even": ("baseline", "metric"),
    "controls": ("baseline",),
    "effective-length": ("baseline", "metric"),
    "training": ("baseline", "metric", "where", "under"),
}
"""Options that a kind of picture does not have."""


def picture(
    kind: str,
    folders: Sequence[Path],
    options: PictureOptions | None = None,
    *,
    where: Sequence[str] = (),
    under: Sequence[Limit] = (),
    mixed: bool = False,
) -> Picture:
    """A picture of the results, or trainings, below folders.

    Args:
        kind: one of `KINDS`.
        folders: of results; of trainings for the kind `training`.
        options: what is drawn of them.
        where: conditions of `reports.filters.select`.
        under: limits of costs.
        mixed: whether results that are not alike are drawn, which the caption then names.

    Raises:
        UserError: for an unknown name, or results that do not make such a picture, or are not alike.
    """
    options = options or PictureOptions()
    if kind not in KINDS:
        raise unknown("kind of picture", kind, KINDS)
    if options.x not in COSTS:
        raise unknown("cost", options.x, COSTS)
    _refuse(kind, {"baseline": options.baseline, "metric": options.metric, "where": where, "under": under})
    if kind == "training":
        return training(folders, options)
    selection = selection_of(folders, where, under)
    if not mixed:
        check_alike(selection.results)
    if kind == "effective-length":  # whose intervals need the parts of the runs together
        drawing = effective_length(selection.results, options, selection.left_out)
    else:
        drawing = DRAWERS[kind](frame_of(selection.results), options, selection.left_out)
    named = mixtures(selection.results, names=options.names)
    caption = " ".join([drawing.caption, *(f"{mixture.sentence}." for mixture in named)])
    details = [*(mixture.detail for mixture in named if mixture.detail), *of_weights(selection.results, options.names)]
    notes = " ".join(filter(None, [drawing.notes, *(f"{detail}." for detail in details)]))
    return dataclasses.replace(drawing, caption=caption, notes=notes)


def _refuse(kind: str, options: Mapping[str, object]) -> None:
    """Refuse options that a kind does not have."""
    for name in WITHOUT.get(kind, ()):
        if options[name]:
            raise UserError(f"A picture of the kind {kind} has no --{name}: leave it out.")
