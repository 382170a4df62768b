"""Computes the metrics of stored runs again from their stored records, without running a model.

Metrics, the measure and the parts that pairing needs become those of this version; cost and provenance stay.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

from contextlab import registry
from contextlab.benchmarks.task import LENGTHS, Measure, Protocol


def resummarise(folder: Path) -> None:
    """One run's folder."""
    manifest, summary = (json.loads((folder / f"{name}.json").read_text("utf-8")) for name in ("manifest", "summary"))
    lines = [json.loads(line) for line in (folder / "examples.jsonl").read_text("utf-8").splitlines()]
    protocol = _protocol(manifest["identity"])
    for line in lines:
        line["parts"] = {} if "skipped" in line["record"] else protocol.parts(line["record"])
    metrics = protocol.summarise([line["record"] for line in lines[: summary["data"]["examples"]]])
    measure = protocol.measure or Measure(next(iter(metrics)))
    changed = {
        "measure": dataclasses.asdict(measure),
        "metrics": {name: dataclasses.asdict(metric) for name, metric in metrics.items()},
    }
    _write(folder / "examples.jsonl", "".join(json.dumps(_ordered(line)) + "\n" for line in lines))
    _write(folder / "summary.json", json.dumps(_with(summary, changed), indent=1) + "\n")


def _protocol(identity: dict[str, Any]) -> Protocol:
    lengths = {name: identity[name] for name in LENGTHS if identity[name] is not None}
    task, split = registry.task_and_split(identity["task"], identity["split"], lengths)
    return task.protocol(split, identity["context"])


def _ordered(line: dict[str, Any]) -> dict[str, Any]:
    """A line with its parts, in the order of fields of a new run."""
    before = ("id", "index", "record", "quality", "parts")
    return {
        **{key: line[key] for key in before if key in line},
        **{key: line[key] for key in line if key not in before},
    }


def _with(summary: dict[str, Any], changed: dict[str, Any]) -> dict[str, Any]:
    """A summary with other metrics, in the same order; the measure is before the metrics."""
    kept = {key: value for key, value in summary.items() if key != "measure"}
    return {
        one: item
        for key, value in kept.items()
        for one, item in (changed.items() if key == "metrics" else [(key, value)])
    }


def _write(path: Path, text: str) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text, "utf-8")
    temporary.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", type=Path, nargs="+", help="results, at any depth")
    folders = [path.parent for folder in parser.parse_args().folders for path in sorted(folder.rglob("summary.json"))]
    for folder in folders:
        resummarise(folder)
    print(json.dumps({"runs": len(folders)}))


if __name__ == "__main__":
    main()
