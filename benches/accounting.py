"""The cost of accounting: alternating runs with and without counting."""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from typing import Any

from contextlab.backbone import load
from contextlab.harness.identity import hardware
from contextlab.harness.runner import bench

TASKS = ("needle", "metaicl", "icl")


def run_seconds(method: str, task: str, backbone: str, limit: int, data: str | None, *, counting: bool) -> float:
    """Wall time of a run, including loading of data and backbone, which both kinds share."""
    with tempfile.TemporaryDirectory() as out:
        started = time.perf_counter()
        bench(method, task, backbone=backbone, device="cpu", limit=limit, data=data, out=out, counting=counting)
        return time.perf_counter() - started


def compared(method: str, task: str, backbone: str, limit: int, data: str | None, repeats: int) -> dict[str, Any]:
    """Medians over alternating runs, so that both have the same load of the machine."""
    pairs = [
        [run_seconds(method, task, backbone, limit, data, counting=counting) for counting in (False, True)]
        for _ in range(repeats)
    ]
    plain, counted = (statistics.median(times) for times in zip(*pairs, strict=True))
    ratios = sorted(with_ / without for without, with_ in pairs)
    return {
        "method": method,
        "task": task,
        "backbone": backbone,
        "limit": limit,
        "plain_seconds": plain,
        "counted_seconds": counted,
        "median_ratio": statistics.median(ratios),
        "lowest_ratio": ratios[0],
        "highest_ratio": ratios[-1],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--method", default="sliding")
    parser.add_argument("--backbone", default="smollm2-135m")
    parser.add_argument("--limit", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--task", default=",".join(TASKS))
    parser.add_argument("--data")
    options = parser.parse_args()
    device = load(options.backbone, device="cpu").device
    runs = [
        compared(options.method, task, options.backbone, options.limit, options.data, options.repeats)
        for task in options.task.split(",")
    ]
    print(json.dumps({"device": hardware(device), "repeats": options.repeats, "runs": runs}))


if __name__ == "__main__":
    main()
