"""The stored record of an example in few bytes: what was asked, what was said, what is right, and how sure it was."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pydantic import JsonValue

LISTS = ("questions", "answers")
"""Fields of a record that hold several questions about one context."""
SAID = ("prediction", "written")
SCORES = ("accuracy", "correct", "f1", "exact_match")
KNOWN = {"id", "work", "answer", "nats", "lengths", "segments", "positions", *LISTS, *SAID, *SCORES}
DIGITS = 4


def answers(record: Mapping[str, JsonValue]) -> dict[str, Any]:
    """What a page shows of a record.

    Returns:
        `items`: one for every question, with `id`, `said`, `right`, `score` and `nats` of the candidates, as far as
        they are stored; `segments`: nats per token along a text; `facts`: everything else that is a number or a word.
    """
    several = [one for name in LISTS for one in _dicts(record.get(name))]
    alone = [record] if not several and any(name in record for name in SAID) else []
    made: dict[str, Any] = {"items": [_item(one) for one in several or alone]}
    if isinstance(record.get("segments"), list):
        made["segments"] = _rounded(record["segments"])
    facts = {name: _rounded(one) for name, one in record.items() if _is_fact(name, one, alone=not several)}
    return {name: one for name, one in (made | {"facts": facts}).items() if one}


def _item(one: Mapping[str, Any]) -> dict[str, Any]:
    nats = one.get("nats")
    item = {
        "id": one.get("id"),
        "said": next((one[name] for name in SAID if name in one), None),
        "right": one.get("answer"),
        "score": next((float(one[name]) for name in SCORES if isinstance(one.get(name), int | float)), None),
        "nats": _rounded(nats) if isinstance(nats, list) else None,
    }
    return {name: _rounded(value) for name, value in item.items() if value is not None}


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _is_fact(name: str, value: Any, *, alone: bool) -> bool:
    # Perplexity tasks store their nats as one number, which is a fact, and choices as a list, which is an item.
    known = name in KNOWN and not (alone and name == "nats")
    return not known and isinstance(value, str | int | float)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        # JSON has no infinite numbers.
        return round(value, DIGITS) if math.isfinite(value) else None
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    return value
