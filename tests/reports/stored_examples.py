"""Runs with examples on disk, without running anything."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stored_runs import result


def line(name: str, quality: float | None, **fields: Any) -> dict[str, Any]:
    """One finished example; it is its own cluster unless its record has a work."""
    return {"id": name, "quality": quality, "record": {"id": name}, "cost": {}, "state": None, **fields}


def of_tokens(name: str, nats: float, by_position: Mapping[str, float]) -> dict[str, Any]:
    """An example of perplexity: nats per token, as a whole and by position, each of 100 tokens."""
    positions = {position: {"tokens": 100, "nats": 100 * one} for position, one in by_position.items()}
    parts = {"nats_per_token": [[100 * nats, 100, name]]}
    return line(name, nats, parts=parts, record={"id": name, "positions": positions})


def keep(folder: Path, run: dict[str, Any], lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Store a run with its examples, and return it with its folder."""
    here = folder / run["run_id"]
    here.mkdir(parents=True)
    run = run | {"data": run["data"] | {"examples": len(lines)}}
    (here / "summary.json").write_text(json.dumps({key: one for key, one in run.items() if key != "parts"}))
    indexed = ({**one, "index": number} for number, one in enumerate(lines))
    (here / "examples.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in indexed))
    return {**run, "folder": str(here)}


def metric(value: float, n: int = 3, half: float | None = None) -> dict[str, Any]:
    """A stored metric with an interval of so much on each side."""
    low, high = (None, None) if half is None else (value - half, value + half)
    return {"value": value, "low": low, "high": high, "n": n}


def accurate(method: str, value: float, **changes: Any) -> dict[str, Any]:
    """A run whose measure is an accuracy, higher is better."""
    measure = {"name": "accuracy", "higher_is_better": True, "bounded": True}
    return result(method, **({"measure": measure, "metrics": {"accuracy": metric(value, half=0.1)}} | changes))
