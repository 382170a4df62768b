"""`contextlab plot`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from contextlab.cli import say
from contextlab.cli.options import Mixed, NamesFile, Under, Where, limits_of, names_of
from contextlab.errors import UserError


def plot(
    kind: Annotated[
        str,
        typer.Argument(
            help="pareto, length, effective-length, position, reach, break-even, scatter, controls or training; pareto "
            "when a folder stands here."
        ),
    ],
    folders: Annotated[
        list[Path] | None, typer.Argument(metavar="DIR...", help="Folders of results; of trainings for training.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="File: .pdf, .png or .svg; KIND.svg in the first folder if none.")
    ] = None,
    where: Where = None,
    under: Under = None,
    x: Annotated[str, typer.Option("--x", help="The cost: flops, state or seconds.")] = "flops",
    metric: Annotated[str | None, typer.Option(help="Metric; by default the measure of the task.")] = None,
    baseline: Annotated[
        str | None,
        typer.Option(help="Method to which paired differences are drawn; none for values. By default window."),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(metavar="METHOD", help="A method with a name in the picture; by default eight. May be repeated."),
    ] = None,
    contexts: Annotated[
        int, typer.Option(min=1, help="Contexts over which the cost of training is spread in break-even.")
    ] = 1,
    names: NamesFile = None,
    mixed: Mixed = False,
    notes: Annotated[bool, typer.Option("--notes", help="Also print the circumstances and what is grey.")] = False,
) -> None:
    """Draw stored results as a picture for a paper's column or a page, and print its caption."""
    from contextlab.reports import plots
    from contextlab.reports.plots import draw
    from contextlab.reports.plots.chosen import PictureOptions

    named = folders or []
    if kind not in plots.KINDS and Path(kind).is_dir():
        kind, named = "pareto", [Path(kind), *named]
    if not named:
        raise UserError(f"No folder of results is named: write one after {kind}.")
    out = out or named[0] / f"{kind}.svg"
    draw.check_format(out)
    options = PictureOptions(x, metric, baseline, tuple(label or ()), names_of(names), contexts)
    picture = plots.picture(kind, named, options, where=where or (), under=limits_of(under), mixed=mixed)
    draw.save(picture, out)
    say(picture.caption)
    if notes and picture.notes:
        say(picture.notes)
