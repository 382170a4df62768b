"""Runs stored runs again and compares them record by record.

For every method and every task the stored run with the fewest tokens is used. Its first examples run again with the
stored settings. A record is reproduced when all its texts and integers are equal and its other numbers agree within the
tolerance, which allows for processors that sum in another order.

Runs whose trained weights were in 16 bits need these files, which `CONTEXTLAB_WEIGHTS` names (see the README of the
package's weights); with those in 8 bits one needle record differed by .006.

The last line is JSON: per run the number of equal records, the largest relative difference, and larger differences; or
what is missing to run it again.

    python benches/rerun.py results --data DIR [--limit 1] [--every]
    python benches/rerun.py results --lost

With `--lost` nothing runs: the JSON names the stored runs whose trained weights were not kept.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from contextlab import grammar
from contextlab.errors import UserError
from contextlab.harness.identity import hardware
from contextlab.harness.labels import of_result, whole
from contextlab.harness.runner import bench
from contextlab.harness.store import lines, read_result
from contextlab.harness.stored import Result
from contextlab.trained import by_digest

TOLERANCE = 1e-4
Leaves = dict[str, Any]


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every number and text of a record by its dotted name."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, f"{name}.{key}")
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from leaves(item, f"{name}.{number}")
    else:
        yield name.lstrip("."), value


def distance(first: Any, other: Any) -> float:
    """Relative difference of two floats; for other values 0 if they are equal, else infinity."""
    if isinstance(first, float) and isinstance(other, float):
        return abs(first - other) / max(abs(first), abs(other), 1.0)
    return 0.0 if first == other else math.inf


def stored(folders: Sequence[Path], every: bool) -> list[Path]:
    """Run folders: all, or for every method and every task the one with the fewest tokens."""
    runs = [path.parent for folder in folders for path in sorted(folder.rglob("summary.json"))]
    if not runs:
        raise SystemExit("no stored run in " + ", ".join(map(str, folders)))
    if every:
        return runs
    chosen: dict[Path, None] = {}
    results = {run: read_result(run) for run in runs}
    for kind in ("task", "method"):
        for name in sorted({getattr(result, kind) for result in results.values()}):
            alike = [run for run, result in results.items() if getattr(result, kind) == name]
            if not any(run in chosen for run in alike):
                chosen[min(alike, key=lambda run: _tokens(results[run]))] = None
    return list(chosen)


def lost(folders: Sequence[Path]) -> dict[str, list[str]]:
    """By folder, the runs with trained weights that are not among the listed ones, now or in an earlier file."""
    listed = by_digest()
    named: dict[str, list[str]] = {}
    for run in stored(folders, every=True):
        result = read_result(run)
        if result.cost.train is not None and result.method_weights not in listed:
            named.setdefault(run.parent.name, []).append(run.name)
    return named


def _tokens(result: Result) -> int:
    return sum(cost.tokens for cost in result.cost.phases().values())


def compared(run: Path, data: str | None, limit: int) -> dict[str, Any]:
    """The first examples of a stored run, compared with the same examples run again."""
    result = read_result(run)
    settings = {name: value for name, value in result.method_config.items() if value is not None}
    if result.untrained:
        # Weights that came with the package later may fit.
        settings["weights"] = "none"
    with tempfile.TemporaryDirectory() as out:
        bench(
            grammar.spelled(result.method, None, settings),
            of_result(result),
            backbone=result.backbone,
            context=result.context,
            dtype=result.provenance.dtype,
            seed=result.provenance.seed,
            limit=limit,
            data=data,
            out=out,
            device="cpu",
            counting=False,
        )
        (folder,) = Path(out).iterdir()
        again = {line.id: line.record for line in lines(folder)}
    before = {line.id: line.record for line in lines(run) if line.id in again}
    differences: Leaves = {}
    largest, agreeing = 0.0, 0
    for name, record in again.items():
        old, new = dict(leaves(before.get(name, {}))), dict(leaves(record))
        apart = {key: distance(old.get(key), new.get(key)) for key in old.keys() | new.keys()}
        over = {key: [old.get(key), new.get(key)] for key, value in apart.items() if value > TOLERANCE}
        largest = max([largest, *(value for value in apart.values() if value < math.inf)])
        agreeing += not over
        differences |= {f"{name}: {key}": values for key, values in over.items()}
    about = {"run": str(run), "method": whole(result), "task": of_result(result), "context": result.context}
    return {**about, "records": len(again), "equal": agreeing, "largest": largest, "differences": differences}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--data")
    parser.add_argument("--limit", type=int, default=1)
    parser.add_argument("--every", action="store_true", help="all stored runs")
    parser.add_argument("--lost", action="store_true", help="only name runs whose weights were not kept")
    options = parser.parse_args()
    if options.lost:
        print(json.dumps({"bench": "rerun", "lost": lost(options.folders)}))
        return
    runs = []
    for run in stored(options.folders, options.every):
        try:
            runs.append(compared(run, options.data, options.limit))
        except UserError as error:
            runs.append({"run": str(run), "method": read_result(run).method, "missing": str(error)})
        print(json.dumps(runs[-1]), flush=True)
    device = hardware(torch.device("cpu"))
    print(json.dumps({"bench": "rerun", "device": device, "tolerance": TOLERANCE, "runs": runs}))


if __name__ == "__main__":
    main()
