"""`contextlab table`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def table(
    folder: Annotated[Path, typer.Argument(help="Folder of results, as `bench` stores them.")],
    style: Annotated[str, typer.Option("--format", help="markdown, latex, csv or html.")] = "markdown",
    rows: Annotated[str, typer.Option(help="method, task, context, backbone, device, dtype or seed.")] = "method",
    columns: Annotated[str, typer.Option(help="As rows; each value has its own group of columns.")] = "task",
    baseline: Annotated[str | None, typer.Option(help="Method whose metrics are subtracted.")] = None,
    legacy: Annotated[bool, typer.Option(help="Add the cost as GenerativeAdapter's Table 1 counts it.")] = False,
    metric: Annotated[str, typer.Option(help="Metrics, separated by commas; by default all.")] = "",
) -> None:
    """Print a comparison table of stored results, with a caption about its data."""
    from contextlab.reports.stored import load_results
    from contextlab.reports.tables import comparison, render

    wanted = [name for name in metric.split(",") if name]
    frame = comparison(load_results(folder), rows, columns, baseline, wanted, legacy_cost=legacy)
    print(render(frame, style), end="")
