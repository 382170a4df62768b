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
    x: Annotated[str, typer.Option("--x", help="The cost: flops, state or seconds.")] = "flops",
    metric: Annotated[str | None, typer.Option(help="Metric; by default the measure of the task.")] = None,
    baseline: Annotated[
        str | None, typer.Option(help="Draw paired differences to this method; in a scatter, the horizontal axis.")
    ] = None,
    names: Annotated[Path | None, typer.Option(help='TOML file with names, as method.longmem = "LongMem".')] = None,
) -> None:
    """Draw stored results as a picture as wide as a paper's column, and print its caption."""
    from contextlab.reports import plots
    from contextlab.reports.names import PLAIN, Names
    from contextlab.reports.plots import draw

    draw.check_format(out)
    chosen = PLAIN if names is None else Names.read(names)
    made = plots.picture(kind, folders, where=where or (), x=x, metric=metric, baseline=baseline, names=chosen)
    draw.save(made, out)
    say(made.caption)
