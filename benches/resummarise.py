"""Computes the metrics of stored runs again from their stored records, without running a model.

Metrics, the measure and the parts that pairing needs become those of this version; cost and provenance stay.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from contextlab import files, registry, seals
from contextlab.benchmarks.task import LENGTHS, Measure, Protocol
from contextlab.harness import store
from contextlab.harness.store import lines, read_result
from contextlab.harness.stored import ExampleLine, Result


def resummarise(folder: Path) -> None:
    """One run's folder."""
    result, stored = read_result(folder), lines(folder)
    protocol = _protocol(result)
    changed = [_with_parts(line, protocol) for line in stored]
    examples = [line for line in changed if line.index < result.data.examples]
    metrics = protocol.summarise([line.record for line in examples])
    measure = protocol.measure or Measure(next(iter(metrics)))
    was_packed = store.lines_file(folder).name == store.PACKED
    files.write(folder / store.LINES, "".join(seals.sealed(line.as_json(), line=True) + "\n" for line in changed))
    whole = result.model_copy(update={"measure": measure, "metrics": metrics})
    seals.write(folder / store.SUMMARY, whole.as_json())
    if was_packed:
        store.pack(folder)


def _with_parts(line: ExampleLine, protocol: Protocol) -> ExampleLine:
    return line.model_copy(update={"parts": {} if "skipped" in line.record else protocol.parts(line.record)})


def _protocol(result: Result) -> Protocol:
    lengths = {name: length for name in LENGTHS if (length := getattr(result, name)) is not None}
    task, split = registry.task_and_split(result.task, result.split, lengths)
    return task.protocol(split, result.context)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", type=Path, nargs="+", help="results, at any depth")
    folders = [path.parent for folder in parser.parse_args().folders for path in sorted(folder.rglob("summary.json"))]
    for folder in folders:
        resummarise(folder)
    print(json.dumps({"runs": len(folders)}))


if __name__ == "__main__":
    main()
