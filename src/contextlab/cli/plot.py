"""`contextlab plot`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from contextlab.cli import say


def plot(
    kind: Annotated[
        str,
        typer.Argument(help="pareto, length, position, reach, break-even, scatter, controls or training."),
    ],
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Folders of results; of trainings for training.")
    ],
    out: Annotated[Path, typer.Option("-o", "--out", help="File: .pdf, .png or .svg.")],
    where: Annotated[
        list[str] | None, typer.Option(help="A condition on results, as task=pg22 or 'n>3'; may be repeated.")
    ] = None,
    under: Annotated[
        list[str] | None, typer.Option(metavar="LIMIT", help="Only what costs no more, as state=32MB; repeat it.")
    ] = None,
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
    names: Annotated[Path | None, typer.Option(help='TOML file with names, as method.longmem = "LongMem".')] = None,
    mixed: Annotated[bool, typer.Option("--mixed", help="As in `contextlab table`.")] = False,
    notes: Annotated[bool, typer.Option("--notes", help="Also print the circumstances and what is grey.")] = False,
) -> None:
    """Draw stored results as a picture for a paper's column or a page, and print its caption."""
    from contextlab.reports import plots
    from contextlab.reports.filters import Limit
    from contextlab.reports.names import PLAIN, Names
    from contextlab.reports.plots import draw
    from contextlab.reports.plots.chosen import Options

    draw.check_format(out)
    chosen = PLAIN if names is None else Names.read(names)
    options = Options(x, metric, baseline, tuple(label or ()), chosen, contexts)
    limits = [Limit.parse(text) for text in under or []]
    made = plots.picture(kind, folders, options, where=where or (), under=limits, mixed=mixed)
    draw.save(made, out)
    say(made.caption)
    if notes and made.notes:
        say(made.notes)
