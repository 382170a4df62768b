"""`contextlab verify`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from contextlab import harmless
from contextlab.cli import announce, say


def verify(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[PATH]...",
            help="Files, folders or names of weights; by default all weights that are listed, and the cache.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check runs, weights, trainings, states, and what the cache holds; say what is damaged; exit 2 if anything is."""
    if not as_json:
        announce()

    from contextlab import verify as checks

    results = list(checks.below(paths or checks.own()))
    damaged = [checked for checked in results if checked.wrong is not None]
    counts = {
        kind: sum(checked.kind == kind for checked in results)
        for kind in dict.fromkeys(checked.kind for checked in results)
    }
    if as_json:
        of_files = [{"kind": file.kind, "path": str(file.path), "wrong": file.wrong} for file in damaged]
        print(json.dumps({"checked": counts, "damaged": of_files}))
    else:
        for file in damaged:
            say(f"{file.kind}: {harmless.line(file.wrong or '')}")
        listed = ", ".join(f"{kind} {count}" for kind, count in counts.items()) or "nothing"
        unfinished = sum(checked.unfinished for checked in results)
        others = f", {unfinished} unfinished" if unfinished else ""
        say(f"Checked: {listed}; {len(damaged) or 'nothing'} damaged{others}.")
    if damaged:
        raise typer.Exit(2)
