"""Results as they are stored, without running anything."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from contextlab import seals
from contextlab.benchmarks.task import Part
from contextlab.harness.stored import QUALITY, Parts, Result

NATS = {"window": 3.2, "sliding": 3.05, "full": 3.0}
SPREAD = {"a": -0.01, "b": 0.0, "c": 0.01}
MERGED = ("data", "provenance", "cost", "parameters")
"""Fields whose changes replace only what they name."""
serial = itertools.count()


def nats_of(values: dict[str, float]) -> dict[str, Parts]:
    """The parts of examples of ten tokens each."""
    return {
        name: {"nats_per_token": [Part(10 * nats, 10.0, name)], QUALITY: [Part(nats, 1.0, name)]}
        for name, nats in values.items()
    }


def result(method: str = "window", nats: float = 3.2, **changes: Any) -> Result:
    cost = {"flops": 2_500_000_000_000, "peak_bytes": 3 * 2**20, "seconds": 1.5, "seconds_spread": 0.1, "tokens": 10}
    content: dict[str, Any] = {
        "schema": 2,
        "run_id": f"{method}-{next(serial)}",
        "method": method,
        "method_config": {},
        "changed": [],
        "task": "pg22",
        "split": "S2",
        "context": "own",
        "history": None,
        "tokens": None,
        "backbone": "tiny-llama",
        "data": {"source": "local", "sha256": "a" * 64, "examples": 3, "note": "real: 50 % of the books & more"},
        "parameters": {"backbone": 10, "added": 0, "trained": 0},
        "max_context": None,
        "own_window": None,
        "untrained": False,
        "twin": None,
        "measure": {"name": "nats_per_token", "higher_is_better": False, "bounded": False},
        "metrics": {
            "nats_per_token": {"value": nats, "low": nats - 0.5, "high": nats + 0.5, "n": 3},
            "word_perplexity": {"value": 20.0, "low": None, "high": None, "n": 3},
        },
        "cost": {"train": None, "contextualize": None, "query": cost},
        "measured": 3,
        "state": {"bytes": 2**20, "floats": 1, "tokens": 1},
        "provenance": {
            "contextlab": "1.0",
            "commit": None,
            "torch": "2.0",
            "transformers": "4.0",
            "device": "cpu (x)",
            "dtype": "float32",
            "seed": 0,
            "prompt_sha256": "p" * 64,
            "weights_sha256": "w" * 64,
            "started": f"2026-01-01T{next(serial):06}",
            "command": "",
        },
    }
    parts = nats_of({name: nats + (nats - 2.5) * deviation for name, deviation in SPREAD.items()})
    return changed(Result.model_validate(content).placed(None, parts), **changes)


def changed(run: Result, **changes: Any) -> Result:
    """A result with other fields, perhaps `folder` and `parts` too."""
    folder, parts = (changes.pop(name, getattr(run, name)) for name in ("folder", "parts"))
    before: dict[str, Any] = run.as_json()
    merged = {name: {**before[name], **changes[name]} for name in MERGED if name in changes}
    return Result.model_validate({**before, **changes, **merged}).placed(folder, parts)


def three(**changes: Any) -> list[Result]:
    return [result(method, nats, **changes) for method, nats in NATS.items()]


def store(folder: Path, content: Result | str, lines: str = "") -> Path:
    """Write a summary, and lines where there are any."""
    folder.mkdir(parents=True)
    text = content if isinstance(content, str) else seals.sealed(content.as_json())
    (folder / "summary.json").write_text(text)
    if lines:
        (folder / "examples.jsonl").write_text(lines)
    return folder / "summary.json"


def line_of(name: str, quality: float | None, **fields: Any) -> dict[str, Any]:
    """A finished example as JSON; it is its own cluster unless its record has a work."""
    return {"id": name, "index": 0, "quality": quality, "record": {"id": name}, "cost": {}, "state": None, **fields}


def json_lines(*lines: Mapping[str, Any]) -> str:
    return "".join(f"{json.dumps(line)}\n" for line in lines)
