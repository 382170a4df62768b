"""`contextlab length`."""

from __future__ import annotations

from typing import Annotated

import typer

from contextlab.cli import warn
from contextlab.cli.options import Folders, Mixed, NamesFile, Notes, Under, Where, format_of, limits_of, names_of
from contextlab.cli.table import FORMATS


def length(
    folders: Folders,
    threshold: Annotated[
        float | None,
        typer.Option(help="The least score that is enough, as 0.856; by default 85 % of that at the shortest length."),
    ] = None,
    where: Where = None,
    under: Under = None,
    names: NamesFile = None,
    mixed: Mixed = False,
    style: Annotated[str | None, typer.Option("--format", help=", ".join(FORMATS))] = None,
    notes: Notes = False,
) -> None:
    """Show scores at several lengths of the context, and up to which length a method keeps its score."""
    from contextlab.cli.table import show_each
    from contextlab.reports.alike import check_alike
    from contextlab.reports.dimensions import DIMENSIONS
    from contextlab.reports.filters import selection_of
    from contextlab.reports.frame import written
    from contextlab.reports.length_tables import frame, tables
    from contextlab.reports.lengths import of_tasks

    style = format_of(style, FORMATS)
    shown_as = names_of(names)
    selection = selection_of(folders, where or [], limits_of(under))
    results, left_out = selection.results, selection.left_out
    if not mixed:
        rows = [row for of_task in of_tasks(results)[0].values() for row in of_task]
        check_alike([run for row in rows for run in row.runs.values()], DIMENSIONS)
    if style in ("csv", "json"):
        lengths_frame = frame(results, threshold, left_out)
        print(written(lengths_frame, style), end="")
        if lengths_frame.attrs["left_out"]:
            warn(f"contextlab: {lengths_frame.attrs['left_out']}.")
        return
    show_each(tables(results, threshold, shown_as, left_out), style, notes=notes)
