"""`contextlab table`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from contextlab.cli import console, warn
from contextlab.cli.options import Folders, Mixed, NamesFile, Notes, Under, Where, format_of, limits_of, names_of
from contextlab.errors import check_known

if TYPE_CHECKING:
    from contextlab.reports.cells import Table
    from contextlab.reports.filters import Selection
    from contextlab.reports.layout import TableLayout

Baseline = Annotated[
    list[str] | None,
    typer.Option(
        help="Method whose metrics are subtracted; or, as 'sliding*', for every row the best of these methods that "
        "keeps no more bytes. Several, each with its own --baseline."
    ),
]
FORMATS = ("markdown", "latex", "html", "csv", "json", "text")


def table(
    folders: Folders,
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
    where: Where = None,
    under: Under = None,
    sort: Annotated[str, typer.Option(help="Column or dimension that orders the rows; - before it: descending.")] = "",
    names: NamesFile = None,
    baseline: Baseline = None,
    twins: Annotated[
        tuple[str, str] | None,
        typer.Option(
            metavar="WINDOW FULL", help="Methods whose shares are 0 and 1; adapted twins for those that have learned."
        ),
    ] = None,
    controls: Annotated[
        bool, typer.Option("--controls", help="Subtract the contexts none and wrong, in place of their rows.")
    ] = False,
    seeds: Annotated[str, typer.Option(help="each: a row for every seed; mean: mean and standard deviation.")] = "each",
    mean: Annotated[str, typer.Option(help="tasks: add the mean over tasks.")] = "",
    marks: Annotated[
        bool | None,
        typer.Option("--marks/--no-marks", help="Mark the best where tests say so; by default in latex."),
    ] = None,
    notes: Notes = False,
    mixed: Mixed = False,
    legacy: Annotated[
        bool, typer.Option("--legacy", help="Add the cost as GenerativeAdapter's Table 1 counts it.")
    ] = False,
) -> None:
    """Print a comparison table of stored results, with a caption about its data."""
    from contextlab.reports.filters import selection_of
    from contextlab.reports.layout import TableLayout

    style = format_of(style, FORMATS)
    check_known("choice of --seeds", [seeds], ("each", "mean"))
    check_known("choice of --mean", [mean] if mean else [], ("tasks",))
    layout = TableLayout(
        rows=_words(rows),
        columns=_words(columns),
        metrics=_words(metric),
        costs=_words(cost),
        baselines=tuple(baseline or ()),
        twins=twins,
        controls=controls,
        sort=sort,
        names=names_of(names),
        mean_seeds=seeds == "mean",
        mean_tasks=mean == "tasks",
        marks=style == "latex" if marks is None else marks,
        legacy=legacy,
    )
    selection = selection_of(folders, where or [], limits_of(under), by_metric=style in ("csv", "json"))
    if selection.unfinished:
        warn(f"contextlab: {selection.unfinished_sentence}")
    if style in ("csv", "json"):
        if layout != TableLayout():
            chosen = "choose with --where, as metric=NAME"
            warn(f"contextlab: {style} holds every metric and cost, without differences: {chosen}.")
        _print_frame(selection, style)
    else:
        _print_table(selection, layout, style, mixed=mixed, notes=notes)


def _print_frame(selection: Selection, style: str) -> None:
    """A row for every metric of every run; runs that are left out are named on standard error."""
    from contextlab.reports.frame import frame_of, written

    print(written(frame_of(selection.results), style), end="")
    if selection.left_out.sentence:
        warn(f"contextlab: {selection.left_out.sentence}.")


def _print_table(selection: Selection, layout: TableLayout, style: str, *, mixed: bool, notes: bool) -> None:
    from contextlab.reports.alike import check_alike
    from contextlab.reports.dimensions import DIMENSIONS
    from contextlab.reports.tables import comparison

    if not mixed:
        check_alike(selection.results, DIMENSIONS)
    comparison_table = comparison(selection.results, layout)
    show(dataclasses.replace(comparison_table, left_out=selection.left_out.sentence), style, notes=notes)


def _words(text: str) -> tuple[str, ...]:
    """The words of a text between commas."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


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


def show_each(tables: Iterable[Table], style: str, *, notes: bool = False) -> None:
    """Print several tables one after the other, as `show` does each."""
    for number, table in enumerate(tables):
        if number and style != "text":
            print()
        show(table, style, notes=notes)
