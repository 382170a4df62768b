"""How large a page is, and how long a browser takes to show it: many runs of many examples, from one stored run.

The page is made of copies of a stored run whose numbers are moved at random, so that they compress as real ones do. The
browser is Debian's Chromium; a page is ready when its table, picture and first examples are drawn.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from contextlab import seals
from contextlab.harness.identity import hardware
from contextlab.harness.store import lines, read_result
from contextlab.harness.stored import ExampleLine
from contextlab.reports.page import page

ROOT = Path(__file__).parents[1]
STORED = "results/chapterbreak-ctx-4k/full-chapterbreak-ctx-4k-e019564b8e39"


def copies(stored: Path, examples: int) -> Iterator[ExampleLine]:
    """So many lines like those of a stored run."""
    kept = lines(stored)
    for number in range(examples):
        line = kept[number % len(kept)]
        nats = [value + random.gauss(0, 0.3) for value in _numbers(line.record["nats"])]
        record = line.record | {"nats": nats, "prediction": nats.index(min(nats))}
        yield line.model_copy(update={"id": f"{line.id}/{number}", "index": number, "record": record})


def _numbers(value: Any) -> list[float]:
    return list(value)


def store(folder: Path, stored: Path, runs: int, examples: int) -> None:
    """So many runs like a stored one."""
    result = read_result(stored)
    for number in range(runs):
        here = folder / str(number)
        here.mkdir(parents=True)
        data = result.data.model_copy(update={"examples": examples})
        changed = {"run_id": f"run-{number}", "method_config": {"N": number}, "changed": ["N"], "data": data}
        seals.write(here / "summary.json", result.model_copy(update=changed).as_json())
        text = "".join(f"{seals.sealed(line.as_json(), line=True)}\n" for line in copies(stored, examples))
        (here / "examples.jsonl").write_text(text)


def milliseconds(file: Path, repeats: int) -> list[float]:
    """From the start of the navigation until the page is ready, in a fresh browser every time."""
    from playwright.sync_api import sync_playwright

    times = []
    with sync_playwright() as started:
        for _ in range(repeats):
            browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            view = browser.new_page()
            view.goto(file.as_uri())
            view.wait_for_selector("html[data-ready]")
            times.append(float(view.evaluate("document.documentElement.dataset.ready")))
            browser.close()
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--examples", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    random.seed(0)
    with tempfile.TemporaryDirectory() as name:
        folder, file = Path(name) / "runs", Path(name) / "page.html"
        store(folder, ROOT / STORED, options.runs, options.examples)
        start = time.process_time()
        file.write_text(page([folder]), "utf-8")
        seconds = time.process_time() - start
        times = milliseconds(file, options.repeats)
        report = {
            "bench": "page",
            "device": hardware(torch.device("cpu")),
            "runs": options.runs,
            "examples_per_run": options.examples,
            "mebibytes": round(file.stat().st_size / 2**20, 1),
            "cpu_seconds_to_make": round(seconds, 1),
            "milliseconds_to_show": {
                "median": statistics.median(times),
                "low": min(times),
                "high": max(times),
                "repeats": options.repeats,
            },
        }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
