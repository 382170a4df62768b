"""`contextlab page`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from contextlab import files, harmless
from contextlab.cli import say
from contextlab.cli.options import Folders, NamesFile, Where, names_of
from contextlab.errors import UserError


def page(
    folders: Folders,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="File: .html; page.html in the first folder if none.")
    ] = None,
    where: Where = None,
    data: Annotated[Path | None, typer.Option(help="Folder of data sets, whose texts the page then shows.")] = None,
    baseline: Annotated[
        str | None,
        typer.Option(help="Method to which differences are shown; by default window, or else the first one."),
    ] = None,
    title: Annotated[str, typer.Option(help="Title of the page.")] = "Results",
    names: NamesFile = None,
) -> None:
    """Write one HTML file with all results, their costs and their examples, which needs no network."""
    from contextlab.reports.page import page as page_text

    out = out or folders[0] / "page.html"
    if out.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"{out} is no page: let its name end with .html.")
    missing: list[str] = []
    shown = sys.stderr.isatty()
    text = page_text(
        folders,
        where=where or (),
        data=data,
        title=title,
        names=names_of(names),
        baseline=baseline,
        on_missing=missing.append,
        progress=shown,
    )
    with files.writing(out, "choose another file with -o"):
        out.parent.mkdir(parents=True, exist_ok=True)
        files.write(out, text)
    for sentence in missing:
        typer.echo(f"contextlab: {harmless.line(sentence)}", err=True)
    say(f"{out}: {len(text.encode()) / 2**20:.1f} MiB")
