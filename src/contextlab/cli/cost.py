"""`contextlab cost`."""

from __future__ import annotations

from typing import Annotated

import typer

from contextlab.cli.options import Folder, Mixed, NamesFile, Notes, Under, Where, format_of, limits_of, names_of
from contextlab.errors import UserError, check_known

FORMATS = ("markdown", "latex", "html", "text")


def cost(
    folder: Folder,
    resource: Annotated[str, typer.Option("--by", help="flops or seconds.")] = "flops",
    questions: Annotated[str, typer.Option(help="Numbers of questions per context, with commas.")] = "1,10,100,1000",
    contexts: Annotated[int, typer.Option(min=1, help="Contexts over which the cost of training is spread.")] = 1,
    where: Where = None,
    under: Under = None,
    names: NamesFile = None,
    mixed: Mixed = False,
    style: Annotated[str | None, typer.Option("--format", help=", ".join(FORMATS))] = None,
    notes: Notes = False,
) -> None:
    """Show what a context and its questions cost, and from how many questions on which method is cheaper."""
    from contextlab.cli.table import show_each
    from contextlab.reports import by_formula
    from contextlab.reports.alike import check_alike, mixtures, with_mixtures
    from contextlab.reports.break_even import tables
    from contextlab.reports.dimensions import DIMENSIONS
    from contextlab.reports.filters import selection_of

    style = format_of(style, FORMATS)
    check_known("choice of --by", [resource], ("flops", "seconds"))
    counts = _counts(questions)
    shown_as = names_of(names)
    selection = selection_of([folder], where or [], limits_of(under))
    if not mixed:
        check_alike(selection.results, DIMENSIONS)
    named = mixtures(selection.results, DIMENSIONS, shown_as)
    results, left_out = selection.results, selection.left_out
    amortised = tables(results, "seconds" if resource == "seconds" else "flops", counts, shown_as, left_out, contexts)
    of_runs = (*amortised, *by_formula.tables(results, shown_as, left_out))
    show_each((with_mixtures(table, named) for table in of_runs), style, notes=notes)


def _counts(text: str) -> list[int]:
    """Numbers of questions.

    Raises:
        UserError: when one is no whole number above 0.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words or not all(word.isdecimal() and int(word) > 0 for word in words):
        raise UserError(f"--questions {text} are no numbers: write whole numbers above 0, as 1,10,100.")
    return [int(word) for word in words]
