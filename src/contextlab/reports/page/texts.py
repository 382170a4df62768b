"""The texts of examples, where their data set can be loaded and is the one that was measured."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pandas

from contextlab import registry
from contextlab.benchmarks.examples import Block, Choice, Dialogue, Document, Labelled, Question, Reading
from contextlab.benchmarks.task import LENGTHS
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
