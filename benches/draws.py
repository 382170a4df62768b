"""What memory adds to in-context learning: differences between stored runs, paired by draw of demonstrations.

A run with `memory` is compared with the cold window on the same task without it (`gain`), whose texts and
demonstrations in context are the same, and on its own task with the sliding window (`over_sliding`). These are means
over the draws that both runs have, with their number and Student's 95 % interval; fewer than three draws have no
interval. A draw is compared with that of the same seed.

    python benches/draws.py results/icl-many-shots > results/benches/icl_draws.json
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from scipy import special

from contextlab import grammar
from contextlab.harness import labels
from contextlab.harness.store import lines
from contextlab.harness.stored import Result
from contextlab.reports.stored import summaries

PLAIN, NEAR = "window", "sliding"
DIGITS = 9
LEAST = 3
"""The least number of draws that have an interval: the spread of two says nothing of that of others."""
Draws = dict[tuple[int, str], float]
"""The measure of every draw, by the seed of its run and its id."""


def label(run: Result) -> str:
    """The method of a stored run with its settings."""
    return labels.of_method(run.method, {key: run.method_config[key] for key in run.changed})


def alone(task: str) -> str:
    """The task with the same demonstrations in context, and nothing in memory."""
    item = grammar.single(task, "task")
    settings = {key: value for key, value in item.settings.items() if key != "memory"}
    return grammar.spelled(item.name, item.split, settings)


def difference(mine: Draws, other: Draws | None) -> dict[str, Any]:
    """The mean over common draws of one run minus another, with their number and interval; empty without any."""
    both = [mine[draw] - other[draw] for draw in mine if draw in other] if other else []
    if not both:
        return {}
    mean = statistics.mean(both)
    content: dict[str, Any] = {"value": round(mean, DIGITS), "draws": len(both)}
    if len(both) >= LEAST:
        half = special.stdtrit(len(both) - 1, 0.975) * statistics.stdev(both) / len(both) ** 0.5
        content["interval"] = [round(mean - half, DIGITS), round(mean + half, DIGITS)]
    return content


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="of results, as `contextlab bench` stores them")
    options = parser.parse_args()
    results = [run for run in summaries(options.folder) if run.context == "own"]
    devices, dtypes = ({getattr(run.provenance, key) for run in results} for key in ("device", "dtype"))
    provenance = {"device": sorted(devices), "dtype": sorted(dtypes)}
    runs: dict[tuple[str, str], Draws] = {}
    for run in results:
        key = labels.of_result(run), label(run)
        stored = [] if run.folder is None else lines(run.folder, run.data.examples)
        of_run = {(run.provenance.seed, line.id): line.quality for line in stored if line.quality is not None}
        runs[key] = runs.get(key, {}) | of_run
    rows = []
    for (task, method), draws in sorted(runs.items()):
        if alone(task) == task:
            continue
        others = {
            "gain": runs.get((alone(task), PLAIN)),
            f"over_{NEAR}": runs.get((task, NEAR)) if method != NEAR else None,
        }
        row = {"task": task, "method": method, "draws": len(draws), "value": statistics.mean(draws.values())}
        for name, other in others.items():
            if compared := difference(draws, other):
                row[name] = compared
        rows.append(row)
    backbones = sorted({run.backbone for run in results})
    print(json.dumps({"bench": "draws", "backbone": backbones, **provenance, "draws": rows}))


if __name__ == "__main__":
    main()
