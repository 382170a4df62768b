"""The measure of every run of a store, and its difference to one method's on the same task, as one JSON object.

For runs of weights that do not come with the package: a store in `results/` could not be made again from a clone.
`low` and `high` are 95 % intervals over independent works, texts or draws; those of `minus_baseline` are of paired
differences.

    python benches/compared.py RUNS --baseline evalm-c4-r16-domain > results/benches/NAME.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from contextlab.harness import labels
from contextlab.harness.stored import Result
from contextlab.reports.diffs import diff
from contextlab.reports.dimensions import named
from contextlab.reports.stored import summaries


def row(result: Result, baseline: Result | None) -> dict[str, Any]:
    """Value of a run, and its difference to the baseline where this has the task."""
    metric = result.metrics[result.measure.name]
    line = {"task": labels.of_result(result), "method": named(result), "measure": result.measure.name, "n": metric.n}
    line |= {"value": metric.value, "low": metric.low, "high": metric.high}
    if baseline is None or baseline is result:
        return line
    if (comparison := diff(baseline, result).comparison) is not None:
        metric = comparison.metric
        line["minus_baseline"] = {"value": metric.value, "low": metric.low, "high": metric.high, "p": comparison.pvalue}
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="of `contextlab bench --out`")
    parser.add_argument("--baseline", required=True, help="the method that all others are compared with")
    options = parser.parse_args()
    stored = summaries(options.folder)
    baselines = {labels.of_result(result): result for result in stored if named(result) == options.baseline}
    lines = [row(result, baselines.get(labels.of_result(result))) for result in stored]
    lines.sort(key=lambda line: (line["task"], line["value"]))
    devices = sorted({result.provenance.device for result in stored})
    print(json.dumps({"bench": "compared", "baseline": options.baseline, "devices": devices, "compared": lines}))


if __name__ == "__main__":
    main()
