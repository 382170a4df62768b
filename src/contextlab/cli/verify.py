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
            help="Files or folders; by default the package's weights, CONTEXTLAB_WEIGHTS, and the cache.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check runs, weights, trainings, states, and what the cache holds; say what is damaged; exit 2 if anything is."""
    if not as_json:
        announce()

    from contextlab import verify as checks

    results = list(checks.below(paths or checks.own()))
    damaged = [one for one in results if one.wrong is not None]
    counts = {kind: sum(one.kind == kind for one in results) for kind in dict.fromkeys(one.kind for one in results)}
    if as_json:
        found = [{"kind": one.kind, "path": str(one.path), "wrong": one.wrong} for one in damaged]
        print(json.dumps({"checked": counts, "damaged": found}))
    else:
        for one in damaged:
            say(f"{one.kind}: {harmless.line(one.wrong or '')}")
        listed = ", ".join(f"{kind} {count}" for kind, count in counts.items()) or "nothing"
        say(f"Checked: {listed}; {len(damaged) or 'nothing'} damaged.")
    if damaged:
        raise typer.Exit(2)
