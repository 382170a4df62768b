"""Runs with examples on disk, without running anything."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stored_runs import changed, json_lines, result, store
from stored_runs import line_of as line

from contextlab.harness.stored import Result


def of_tokens(name: str, nats: float, by_position: Mapping[str, float]) -> dict[str, Any]:
    """An example of perplexity: nats per token, as a whole and by position, each of 100 tokens."""
    positions = {position: {"tokens": 100, "nats": 100 * nats} for position, nats in by_position.items()}
    parts = {"nats_per_token": [[100 * nats, 100, name]]}
    return line(name, nats, parts=parts, record={"id": name, "positions": positions})


def keep(folder: Path, run: Result, lines: list[dict[str, Any]]) -> Result:
    """Store a run with its examples, and return it with its folder."""
    here = folder / run.run_id
    run = changed(run, data={"examples": len(lines)}, folder=here, parts=None)
    store(here, run, json_lines(*({**entry, "index": number} for number, entry in enumerate(lines))))
    return run


def metric(value: float, n: int = 3, half: float | None = None) -> dict[str, Any]:
    """A stored metric with an interval of so much on each side."""
    low, high = (None, None) if half is None else (value - half, value + half)
    return {"value": value, "low": low, "high": high, "n": n}


def accurate(method: str, value: float, **changes: Any) -> Result:
    """A run whose measure is an accuracy, higher is better."""
    measure = {"name": "accuracy", "higher_is_better": True, "bounded": True}
    return result(method, **({"measure": measure, "metrics": {"accuracy": metric(value, half=0.1)}} | changes))
