"""What a page shows of an example, of its stored record, and of a method or task."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas
from pydantic import JsonValue

from contextlab import registry
from contextlab.benchmarks.examples import Block, Choice, Dialogue, Document, Labelled, Question, Reading
from contextlab.benchmarks.task import LENGTHS
from contextlab.config import Config, described
from contextlab.errors import UserError

END = 700
"""Characters of a context that are shown: the last ones."""
MOST = 1500
"""Characters of any other text."""


def texts(run: Any, ids: Collection[str], data: Path) -> dict[str, Any]:
    """Texts of examples by their ids: `end` of the context, `options` of a choice, `questions` with right answers.

    Args:
        run: any row of the frame of results on these examples.
        ids: of the examples.
        data: folder of data sets; generated samples need none.

    Raises:
        UserError: when the data cannot be loaded, or are others than those that were measured.
    """
    lengths = {name: int(run[name]) for name in LENGTHS if not pandas.isna(run[name])}
    with registry.foreign(f"The texts of {run['task']} cannot be loaded", "name their folder with --data"):
        task, split = registry.task_and_split(run["benchmark"], run["split"], lengths)
        loaded = task.load(split, None if run["source"] == "sample" else data)
    if loaded.sha256 != run["data"]:
        raise UserError(f"The texts of {run['task']} are others than those that were measured: name another --data.")
    return {one.id: shown(one) for one in loaded.examples if one.id in ids}


def shown(example: Any) -> dict[str, Any]:
    """What a page shows of an example; nothing of a type that it does not know."""
    if isinstance(example, Choice):
        return {"end": _end(example.context), "options": [_cut(one) for one in example.candidates]}
    if isinstance(example, Reading):
        return {"end": _end(example.context), "questions": {one.id: _question(one) for one in example.questions}}
    if isinstance(example, Block):
        return {"questions": {one.id: {"text": _cut(one.text)} for one in example.items}}
    if isinstance(example, Dialogue):
        return {"end": _end(example.earlier), "text": _cut(example.last.text)}
    if isinstance(example, Document | Labelled):
        return {"text": _cut(example.text)}
    return {}


def _question(question: Question) -> dict[str, Any]:
    made = {"text": _cut(question.text), "answers": [_cut(one) for one in question.answers]}
    return made | ({"options": [_cut(one) for one in question.options]} if question.options else {})


def _end(text: str) -> str:
    return text if len(text) <= END else f"... {text[-END:]}"


def _cut(text: str) -> str:
    return text if len(text) <= MOST else f"{text[:MOST]} ..."


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


def cards(methods: Iterable[str], tasks: Iterable[str]) -> list[dict[str, Any]]:
    """A card for every name: `kind`, `name`, `about` in paragraphs, `settings` and, of tasks, `splits`.

    A name that is not registered here has a card that says so: results may come from another machine.
    """
    return [*(_card("method", name) for name in methods), *(_card("task", name) for name in tasks)]


def _card(kind: str, name: str) -> dict[str, Any]:
    card: dict[str, Any] = {"kind": kind, "name": name}
    try:
        # A path in a result is one of the machine that made it; nothing of it is run to show a page.
        if ".py:" in name:
            raise UserError(f"A {kind} in a file of its own.")
        if kind == "method":
            found = registry.method_class(name)
            return card | _about(found, found.Config)
        task = registry.task(name)
        return card | _about(type(task), task.Config) | {"splits": task.splits}
    except UserError as error:
        return card | {"about": [str(error)], "settings": []}


def _about(kind: type[Any], config: type[Config]) -> dict[str, Any]:
    text = inspect.cleandoc(kind.__doc__ or "")
    paragraphs = [" ".join(one.split()) for one in text.split("\n\n") if not one.startswith(("Args:", "Attributes:"))]
    with registry.foreign(f"The settings of {kind.__name__} cannot be read", "correct its Config"):
        settings = [dataclasses.asdict(one) for one in described(config)]
    return {"about": paragraphs, "settings": settings}
