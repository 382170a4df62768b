"""Training runs as one JSON object: what each has learned from how many tokens, finished or not.

`validations` has one record per validation of a run: nats per token after a document's own history, another's and none,
how much worse another document's history is (`content_gain`, with its standard error), and the share of full
attention's gain over cold windows; `weights` are those that it began with. `runs` has the speed of every run, the
median over its steps, and the mean loss of the last tenth of them.

    python benches/curves.py runs/longmem runs/window > results/benches/training.json

With `--earlier FILE` runs of an earlier result come first, without those that are given again.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import torch

from contextlab import grammar, registry
from contextlab.harness.identity import hardware
from contextlab.training.run import CURVE, RUN

MEASURES = ("loss", "wrong", "none", "content_gain", "content_error", "share", "window", "full")


def record(folder: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The validations of a run, and its speed."""
    run = json.loads((folder / RUN).read_text("utf-8"))
    lines = [json.loads(line) for line in (folder / CURVE).read_text("utf-8").splitlines()]
    training = run["training"]
    name = label(run["method"], run["settings"]) + (f", seed {training['seed']}" if training["seed"] else "")
    steps = [line for line in lines if "seconds" in line]
    tokens = [line["tokens"] for line in steps]
    speeds = [(end - begin) / line["seconds"] for begin, end, line in zip([0, *tokens], tokens, steps, strict=False)]
    measured = [(line["tokens"], line["validation"]) for line in lines if "validation" in line]
    weights = Path(run["settings"].get("weights") or "none")
    begins = weights.parent.name if weights.suffix else weights.name
    run_record = {"run": name, "objective": training["objective"], "weights": begins}
    validations = [
        {**run_record, "tokens": count, **{key: validation[key] for key in MEASURES if key in validation}}
        for count, validation in measured
    ]
    return validations, {
        **run_record,
        **{key: training[key] for key in ("order", "lr")},
        "tokens": tokens[-1],
        "last_loss": statistics.mean(line["loss"] for line in steps[-max(1, len(steps) // 10) :]),
        "of": training["tokens"],
        "tokens_per_second": statistics.median(speeds),
    }


def label(method: str, settings: dict[str, Any]) -> str:
    """The method with the settings that differ from its defaults, but for where its weights begin."""
    changed = registry.method_class(method).Config.parse(settings).changed()
    return grammar.spelled(method, None, {key: settings[key] for key in changed if key != "weights"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", type=Path, nargs="+", help="of `contextlab train --out`")
    parser.add_argument("--earlier", type=Path, help="what this command has printed before")
    options = parser.parse_args()
    records = [record(folder) for folder in options.folders]
    lines = {
        "validations": [line for validations, _ in records for line in validations],
        "runs": [speed for _, speed in records],
    }
    if options.earlier is not None:
        earlier = json.loads(options.earlier.read_text("utf-8"))
        again = {line["run"] for line in lines["runs"]}
        lines = {
            part: [line for line in earlier[part] if line["run"] not in again] + new for part, new in lines.items()
        }
    print(json.dumps({"bench": "training", "device": hardware(torch.device("cpu")), **lines}))


if __name__ == "__main__":
    main()
