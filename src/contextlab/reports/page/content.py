"""Texts, records and cards as a page shows them."""

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
    advice = "name their folder with --data, and run this in the folder of a file of your own"
    with registry.foreign(f"The texts of {run['task']} cannot be loaded", advice):
        task, split = registry.task_and_split(run["benchmark"], run["split"], lengths)
        loaded = task.load(split, None if run["source"] == "sample" else data)
    if loaded.sha256 != run["data"]:
        raise UserError(f"The texts of {run['task']} are others than those that were measured: name another --data.")
    return {example.id: shown(example) for example in loaded.examples if example.id in ids}


def shown(example: Any) -> dict[str, Any]:
    """The texts of an example; empty for an unknown type of example."""
    if isinstance(example, Choice):
        return {"end": _end(example.context), "options": [_cut(candidate) for candidate in example.candidates]}
    if isinstance(example, Reading):
        return {
            "end": _end(example.context),
            "questions": {question.id: _question(question) for question in example.questions},
        }
    if isinstance(example, Block):
        return {"questions": {item.id: {"text": _cut(item.text)} for item in example.items}}
    if isinstance(example, Dialogue):
        return {"end": _end(example.earlier), "text": _cut(example.last.text)}
    if isinstance(example, Document | Labelled):
        return {"text": _cut(example.text)}
    return {}


def _question(question: Question) -> dict[str, Any]:
    content = {"text": _cut(question.text), "answers": [_cut(answer) for answer in question.answers]}
    return content | ({"options": [_cut(option) for option in question.options]} if question.options else {})


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


def answers(record: Mapping[str, JsonValue], measure: str) -> dict[str, Any]:
    """The parts of a record that a page shows.

    Args:
        record: of an example.
        measure: of its run, which is the score of a question where questions have it.

    Returns:
        `items`: one for every question, with `id`, `said`, `right`, `score` and `nats` of the candidates, as far as
        they are stored; `segments`: nats per token along a text; `facts`: everything else that is a number or a word.
    """
    several = [question for name in LISTS for question in _dicts(record.get(name))]
    alone = [record] if not several and any(name in record for name in SAID) else []
    content: dict[str, Any] = {"items": [_item(question, measure) for question in several or alone]}
    if isinstance(record.get("segments"), list):
        content["segments"] = _rounded(record["segments"])
    facts = {name: _rounded(value) for name, value in record.items() if _is_fact(name, value, alone=not several)}
    return {name: value for name, value in (content | {"facts": facts}).items() if value}


def _item(question: Mapping[str, Any], measure: str) -> dict[str, Any]:
    nats, scores = question.get("nats"), (measure, *SCORES)
    item = {
        "id": question.get("id"),
        "said": next((question[name] for name in SAID if name in question), None),
        "right": question.get("answer"),
        "score": next((float(question[name]) for name in scores if isinstance(question.get(name), int | float)), None),
        "nats": _rounded(nats) if isinstance(nats, list) else None,
    }
    return {name: _rounded(value) for name, value in item.items() if value is not None}


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _is_fact(name: str, value: Any, *, alone: bool) -> bool:
    # Perplexity tasks store their nats as one number, which is a fact, and choices as a list, which is an item.
    elsewhere = name in KNOWN and not (alone and name == "nats")
    return not elsewhere and isinstance(value, str | int | float)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        # JSON has no infinite numbers.
        return round(value, DIGITS) if math.isfinite(value) else None
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
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
            class_of_method = registry.method_class(name)
            return card | _about(class_of_method, class_of_method.Config)
        task = registry.task(name)
        return card | _about(type(task), task.Config) | {"splits": task.splits}
    except UserError as error:
        return card | {"about": [str(error)], "settings": []}


def _about(kind: type[Any], config: type[Config]) -> dict[str, Any]:
    text = inspect.cleandoc(kind.__doc__ or "")
    paragraphs = [
        " ".join(paragraph.split())
        for paragraph in text.split("\n\n")
        if not paragraph.startswith(("Args:", "Attributes:"))
    ]
    with registry.foreign(f"The settings of {kind.__name__} cannot be read", "correct its Config"):
        settings = [dataclasses.asdict(setting) for setting in described(config)]
    return {"about": paragraphs, "settings": settings}
