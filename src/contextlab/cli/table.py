"""`contextlab table`."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from contextlab import harmless
from contextlab.cli import console
from contextlab.errors import check_known, listed

if TYPE_CHECKING:
    from contextlab.reports.cells import Table

FORMATS = ("markdown", "latex", "html", "csv", "json", "text")


def table(
    folder: Annotated[Path, typer.Argument(help="Folder of results, as `bench` stores them.")],
    style: Annotated[
        str | None,
        typer.Option("--format", help=f"{', '.join(FORMATS)}; by default text on a terminal, and otherwise markdown."),
    ] = None,
    rows: Annotated[
        str, typer.Option(help="method, task, context, backbone, device, dtype or seed, or several with commas.")
    ] = "method",
    columns: Annotated[str, typer.Option(help="As rows; each value has its own group of columns.")] = "task",
    metric: Annotated[str, typer.Option(help="Metrics and share, with commas, or all; by default the task's.")] = "",
    cost: Annotated[
        str,
        typer.Option(help="flops, state, peak, seconds, train, tokens, formula, all, none, or one cost; with commas."),
    ] = "flops,state,train_flops",
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CONDITION", help="Such as task=pg22, seed!=0, state_bytes<1e6, settings.K=64; repeat it."
        ),
    ] = None,
    under: Annotated[
        list[str] | None, typer.Option(metavar="LIMIT", help="Only what costs no more, as state=32MB; repeat it.")
    ] = None,
    sort: Annotated[str, typer.Option(help="Column or dimension that orders the rows; - before it: descending.")] = "",
    names: Annotated[Path | None, typer.Option(help='TOML file with names, as method.longmem = "LongMem".')] = None,
    baseline: Annotated[str | None, typer.Option(help="Method whose metrics are subtracted.")] = None,
    twins: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="WINDOW FULL", help="Adapted twins, whose shares are 0 and 1."),
    ] = None,
    seeds: Annotated[str, typer.Option(help="each: a row for every seed; mean: mean and standard deviation.")] = "each",
    mean: Annotated[str, typer.Option(help="tasks: add the mean over tasks.")] = "",
    marks: Annotated[
        bool | None,
        typer.Option("--marks/--no-marks", help="Mark the best where tests say so; by default in latex."),
    ] = None,
    notes: Annotated[bool, typer.Option("--notes", help="Also how the numbers were made, below the caption.")] = False,
    mixed: Annotated[
        bool, typer.Option("--mixed", help="Also results of different code, data, prompts or weights.")
    ] = False,
    legacy: Annotated[
        bool, typer.Option("--legacy", help="Add the cost as GenerativeAdapter's Table 1 counts it.")
    ] = False,
) -> None:
    """Print a comparison table of stored results, with a caption about its data."""
    from contextlab.reports.alike import check_alike
    from contextlab.reports.dimensions import DIMENSIONS
    from contextlab.reports.filters import Limit, selection_of
    from contextlab.reports.layout import ENDS, Layout
    from contextlab.reports.names import Names
    from contextlab.reports.tables import comparison

    style = format_of(style, FORMATS)
    check_known("choice of --seeds", [seeds], ("each", "mean"))
    check_known("choice of --mean", [mean] if mean else [], ("tasks",))
    layout = Layout(
        _words(rows),
        _words(columns),
        _words(metric),
        _words(cost),
        baseline,
        twins or ENDS,
        sort,
        Names() if names is None else Names.read(names),
        mean_seeds=seeds == "mean",
        mean_tasks=mean == "tasks",
        marks=style == "latex" if marks is None else marks,
        legacy=legacy,
    )
    selection = selection_of([folder], where or [], [Limit.parse(text) for text in under or []])
    _note(selection.unfinished)
    if style in ("csv", "json"):
        from contextlab.reports.frame import frame_of, written

        print(written(frame_of(selection.results), style), end="")
        if selection.left_out.sentence:
            print(harmless.line(f"contextlab: {selection.left_out.sentence}."), file=sys.stderr)
        return
    if not mixed:
        check_alike(selection.results, DIMENSIONS)
    made = comparison(selection.results, layout)
    show(dataclasses.replace(made, left_out=selection.left_out.sentence), style, notes=notes)


def _words(text: str) -> tuple[str, ...]:
    """The words of a text between commas."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def format_of(style: str | None, known: Sequence[str]) -> str:
    """A format that is known; by default text on a terminal, and otherwise Markdown.

    Raises:
        UserError: for another one.
    """
    style = style or ("text" if sys.stdout.isatty() else "markdown")
    check_known("format", [style], known)
    return style


def show(table: Table, style: str, *, notes: bool = False) -> None:
    """Print a table in a format, with or without its notes."""
    if style != "text":
        from contextlab.reports.render import render

        print(render(table, style, notes=notes), end="")
        return
    from contextlab.reports import terminal

    screen = console()
    for part in terminal.screens(table, screen.width):
        screen.print(part)
        screen.print()
    for line in terminal.below(table, notes=notes):
        screen.print(line)


def _note(folders: list[Path]) -> None:
    """Say on standard error which runs are left out."""
    if folders:
        text = f"contextlab: left out, because unfinished: {listed([str(one) for one in folders])}."
        print(harmless.line(text), file=sys.stderr)
