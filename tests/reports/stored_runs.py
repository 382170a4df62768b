"""Results as they are stored, without running anything."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from contextlab.benchmarks.task import Part
from contextlab.harness.store import line_parts

NATS = {"window": 3.2, "sliding": 3.05, "full": 3.0}
SPREAD = {"a": -0.01, "b": 0.0, "c": 0.01}
serial = itertools.count()


def nats_of(values: dict[str, float]) -> dict[str, Any]:
    """The parts of examples of ten tokens each."""
    lines = [
        {"id": name, "quality": one, "parts": {"nats_per_token": [Part(10 * one, 10.0, name)]}}
        for name, one in values.items()
    ]
    return {line["id"]: line_parts(line) for line in lines}


def result(method: str = "window", nats: float = 3.2, **changes: Any) -> dict[str, Any]:
    cost = {"flops": 2_500_000_000_000, "peak_bytes": 3 * 2**20, "seconds": 1.5, "seconds_spread": 0.1, "tokens": 10}
    made: dict[str, Any] = {
        "schema": 1,
        "run_id": f"{method}-{next(serial)}",
        "method": method,
        "method_config": {},
        "task": "pg22",
        "split": "S2",
        "context": "own",
        "history": None,
        "tokens": None,
        "backbone": "tiny-llama",
        "data": {"source": "local", "sha256": "a" * 64, "examples": 3, "note": "real: 50 % of the books & more"},
        "metrics": {
            "nats_per_token": {"value": nats, "low": nats - 0.5, "high": nats + 0.5, "n": 3},
            "word_perplexity": {"value": 20.0, "low": None, "high": None, "n": 3},
        },
        "cost": {"train": None, "contextualize": None, "query": cost},
        "state": {"bytes": 2**20, "floats": 1, "tokens": 1},
        "max_context": None,
        "own_window": None,
        "measure": {"name": "nats_per_token", "higher_is_better": False, "bounded": False},
        "parts": nats_of({name: nats + (nats - 2.5) * one for name, one in SPREAD.items()}),
        "provenance": {"device": "cpu (x)", "dtype": "float32", "seed": 0, "started": f"2026-01-01T{next(serial):06}"},
    }
    return made | changes


def three(**changes: Any) -> list[dict[str, Any]]:
    return [result(method, nats, **changes) for method, nats in NATS.items()]


def store(folder: Path, content: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "summary.json").write_text(content)
    return folder / "summary.json"
