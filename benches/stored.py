"""Reading many stored runs: seconds for the frame, for a table, and for one whose cells need the examples.

    python benches/stored.py --runs 5000

Runs are copies of one small stored run with other methods, seeds and tasks. The last line of output is JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from contextlab import seals
from contextlab.benchmarks.task import Measure, Metric, Part
from contextlab.harness.identity import hardware
from contextlab.harness.stored import Costs, Data, ExampleLine, Parameters, PhaseCost, Provenance, Result, StateSize
from contextlab.reports.frame import frame_of
from contextlab.reports.layout import TableLayout
from contextlab.reports.stored import summaries
from contextlab.reports.tables import comparison

METHODS = ("window", "full", "sliding", "sinks", "retrieval", "longmem", "evalm", "hso", "trime", "memtrm")
EXAMPLES = 8


def store(folder: Path, runs: int) -> None:
    """Write runs as `contextlab bench` does."""
    draw = random.Random(0)
    for number in range(runs):
        method, rest = METHODS[number % len(METHODS)], number // len(METHODS)
        run = folder / f"{method}-{number}"
        run.mkdir(parents=True)
        nats = [3.0 + draw.gauss(0, 0.1) for _ in range(EXAMPLES)]
        lines = [seals.sealed(line(index, loss).as_json(), line=True) for index, loss in enumerate(nats)]
        (run / "examples.jsonl").write_text("".join(stored_line + "\n" for stored_line in lines))
        seals.write(run / "summary.json", summary(run.name, method, rest, nats).as_json())


def line(index: int, nats: float) -> ExampleLine:
    """A finished example."""
    name = f"text-{index}"
    parts = {"nats_per_token": [Part(nats * 1024, 1024.0, name)]}
    return ExampleLine(id=name, index=index, record={}, quality=nats, parts=parts, cost={}, state=None)


def summary(run_id: str, method: str, number: int, nats: list[float]) -> Result:
    """The summary of a run; tasks and seeds go up with its number."""
    cost = PhaseCost(flops=10**12, peak_bytes=10**9, seconds=1.0, seconds_spread=0.1, tokens=1024)
    value = sum(nats) / len(nats)
    metrics = {
        name: Metric(value, value - 0.1, value + 0.1, len(nats))
        for name in ("nats_per_token", "token_perplexity", "word_perplexity", "nats_per_token_cold")
    }
    about = Provenance(
        contextlab="0", commit=None, torch="2", transformers="4", device="cpu (x)", dtype="float32", seed=number // 50,
        prompt_sha256="", weights_sha256="", started=f"2026-{number:06d}", command="",
    )  # fmt: skip
    return Result(
        run_id=run_id, method=method, method_config={"N": 1024, "sinks": 4}, changed=[], task=f"task-{number % 50}",
        split="S1", context="own", history=None, tokens=None, backbone="smollm2-135m",
        data=Data(source="local", sha256=f"{number % 50:064d}", examples=len(nats), note="synthetic"),
        parameters=Parameters(backbone=0, added=0, trained=0), max_context=None, untrained=False, twin=None,
        measure=Measure("nats_per_token", higher_is_better=False), metrics=metrics, cost=Costs(query=cost), measured=0,
        state=StateSize(bytes=10**6, floats=10**5, tokens=1024, cached=1024), provenance=about,
    )  # fmt: skip


def seconds(work: Callable[[], Any], repeats: int) -> dict[str, float]:
    """Median, fastest and slowest."""
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        times.append(round(time.perf_counter() - begin, 3))
    return {"median": statistics.median(times), "low": min(times), "high": max(times)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5000)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store(Path(folder), options.runs)
        work: dict[str, Callable[[], Any]] = {
            "frame": lambda: frame_of(summaries(folder)),
            "table": lambda: comparison(summaries(folder), TableLayout(metrics=("nats_per_token_cold",))),
            "table_with_share": lambda: comparison(summaries(folder)),
            "table_with_tests": lambda: comparison(summaries(folder), TableLayout(marks=True, mean_seeds=True)),
        }
        times = {name: seconds(call, options.repeats) for name, call in work.items()}
    report = {"bench": "stored", "device": hardware(torch.device("cpu")), "runs": options.runs, "examples": EXAMPLES}
    print(json.dumps({**report, "repeats": options.repeats, "seconds": times}))


if __name__ == "__main__":
    main()
