"""Estimated and measured time of the papers' recipes, each run once into an empty folder.

Both stand in one row: the estimate of `contextlab reproduce ENTRY --dry-run`, from the speed of this machine
just before the recipe runs; and the seconds until its runs are stored, and those of the command's start, which are not
measured but estimated.

The last line is JSON: in `recipes`, per entry both times and their ratio. With `--out` the runs stay, below it.

    python benches/recipes.py evalm/table4 hso/table2 [--data DIR] [--out DIR] [--limit N]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from contextlab.backbone.embedded import EMBEDDED
from contextlab.errors import UserError
from contextlab.harness.identity import hardware
from contextlab.reports.papers import measure, plan, schema
from contextlab.reports.papers.speed import speed_here


def measured(name: str, out: Path, **options: Any) -> dict[str, Any]:
    """One entry's row.

    Args:
        name: of the entry, as `contextlab reproduce` takes it; its recipe is that of the embedded model.
        out: an empty folder for the runs.
        **options: data, limit and backbone, as of the runner; a limit of None is that of the recipe.
    """
    ((_, entry),) = schema.find(name)
    if entry.embedded is None:
        raise UserError(f"{name} has no recipe for {EMBEDDED}: choose another entry.")
    runs = entry.embedded.runs
    speed = speed_here()
    estimated = sum(step.whole_seconds for step in plan.steps(runs, plan.EMBEDDED, speed, limit=options["limit"]))
    begin = time.perf_counter()
    for _ in measure.measured(runs, out=out, progress=False, **options):
        pass
    seconds = plan.START * len(runs) + time.perf_counter() - begin
    return {"recipe": name, "estimated_s": estimated, "measured_s": seconds, "ratio": seconds / estimated}


def rows(names: Sequence[str], out: Path | None, **options: Any) -> list[dict[str, Any]]:
    """The rows of entries, whose runs stay below `out` where it is given."""
    with tempfile.TemporaryDirectory() as folder:
        return [measured(name, (out or Path(folder)) / name, **options) for name in names]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("entries", nargs="+", help="such as hso/table2")
    parser.add_argument("--data", type=Path, help="as for contextlab bench")
    parser.add_argument("--out", type=Path, help="folder for the runs, which are thrown away when not given")
    parser.add_argument("--limit", type=int, help="the most examples of every run")
    parser.add_argument("--backbone", default=EMBEDDED, help="that computes; estimates are of the recipe's")
    options = vars(parser.parse_args())
    recipes = rows(options.pop("entries"), options.pop("out"), **options)
    print(json.dumps({"bench": "recipes", "device": hardware(torch.device("cpu")), "recipes": recipes}))


if __name__ == "__main__":
    main()
