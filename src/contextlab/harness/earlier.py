"""Results of schema 1 as those of schema 2.

Schema 1 did not always store the measure, the settings that were changed, or the indices of examples, and its earliest
runs timed the calls that they counted. What a method has learned, and the digest of the code, stood in the manifest
alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FIRST = 1


def migrated(value: Mapping[str, Any], manifest: Any) -> dict[str, Any]:
    """The JSON object of a result of schema 1, with what that schema left out.

    Args:
        value: from `summary.json`.
        manifest: from `manifest.json`; None where there is none.
    """
    cost, metrics = value.get("cost"), value.get("metrics")
    provenance = value.get("provenance")
    source = {"source_sha256": _at(manifest, "identity", "source_sha256")}
    measure = {"name": next(iter(metrics))} if isinstance(metrics, dict) and metrics else None
    return {
        **dict.fromkeys(("history", "tokens", "max_context", "twin", "state")),
        "changed": [],
        "measured": 0,
        "untrained": False,
        "measure": measure,
        "method_weights": _at(manifest, "identity", "method_weights"),
        **value,
        "schema": 2,
        "provenance": {**source, **provenance} if isinstance(provenance, dict) else provenance,
        "cost": {name: _cost(name, phase) for name, phase in cost.items()} if isinstance(cost, dict) else cost,
    }


def manifest(value: dict[str, Any]) -> dict[str, Any]:
    """The JSON object of a manifest, one of schema 1 as schema 2, which has the same fields."""
    return {**value, "schema": 2} if value.get("schema") == FIRST else value


def line(value: dict[str, Any], indices: dict[str, int]) -> dict[str, Any]:
    """The JSON object of a line; one without an index has that of its example's order in the file.

    Args:
        value: the line.
        indices: of the examples of the lines before it, to which its own is added.
    """
    if not isinstance(name := value.get("id"), str):
        return value
    index = indices.setdefault(name, len(indices))
    return {"parts": {}, **value, "index": index} if value.get("index") is None else value


def _cost(phase: str, value: Any) -> Any:
    counted = isinstance(value, dict) and phase != "train" and "seconds_spread" not in value
    return {**value, "timed_while_counting": True} if counted else value


def _at(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
