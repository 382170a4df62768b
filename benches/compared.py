"""The measure of every run of a store, and its difference to one method's after the same context, as one JSON object.

For runs of weights that do not come with the package: a store in `results/` could not be made again from a clone.
`low` and `high` are 95 % intervals over independent works, texts or draws; those of `minus_baseline` are of paired
differences.

    python benches/compared.py RUNS --baseline evalm-c4-r16-domain > results/benches/NAME.json
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from contextlab.harness import labels
from contextlab.harness.stored import Result
from contextlab.reports.diffs import diff
from contextlab.reports.dimensions import dimensions, named
from contextlab.reports.stored import summaries


def row(name: str, result: Result, baseline: Result | None) -> dict[str, Any]:
    """Value of a run, and its difference to the baseline where this has the task and context."""
    metric = result.metrics[result.measure.name]
    line: dict[str, Any] = {"task": labels.of_result(result), "method": name, "context": result.context}
    line |= {"measure": result.measure.name, "n": metric.n}
    line |= {"state_bytes": None if result.state is None else result.state.bytes}
    line |= {"value": metric.value, "low": metric.low, "high": metric.high}
    if baseline is None or baseline is result:
        return line
    if (comparison := diff(baseline, result).comparison) is not None:
        metric = comparison.metric
        line["minus_baseline"] = {"value": metric.value, "low": metric.low, "high": metric.high, "p": comparison.pvalue}
    return line


def _names(stored: Sequence[Result]) -> list[str]:
    """The method's name of every run, with settings where two runs of one task and context have one name."""
    short = [named(result) for result in stored]
    count = Counter((name, *_place(result)) for name, result in zip(short, stored, strict=True))
    return [
        name if count[name, *_place(result)] == 1 else words["method"]
        for name, words, result in zip(short, dimensions(stored), stored, strict=True)
    ]


def _place(result: Result) -> tuple[str, str]:
    """What two runs have in common that are compared: the task and the context."""
    return labels.of_result(result), result.context


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="of `contextlab bench --out`")
    parser.add_argument("--baseline", required=True, help="the method that all others are compared with")
    options = parser.parse_args()
    stored = summaries(options.folder)
    runs = list(zip(_names(stored), stored, strict=True))
    baselines = {_place(result): result for name, result in runs if name == options.baseline}
    if not baselines:
        parser.error(f"--baseline {options.baseline} is none of {', '.join(sorted({name for name, _ in runs}))}.")
    lines = [row(name, result, baselines.get(_place(result))) for name, result in runs]
    lines.sort(key=lambda line: (line["task"], line["context"], line["value"]))
    devices = sorted({result.provenance.device for result in stored})
    print(json.dumps({"bench": "compared", "baseline": options.baseline, "devices": devices, "compared": lines}))


if __name__ == "__main__":
    main()
