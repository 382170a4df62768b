"""RULER's 13 variants as upstream has them: parameters, prompts and numbers of new tokens, and one prompt in parts."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from importlib import resources
from typing import Any, NamedTuple, Protocol

NAMES = (
    *("niah_single_1", "niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multikey_2", "niah_multikey_3"),
    *("niah_multivalue", "niah_multiquery", "vt", "cwe", "fwe", "qa_1", "qa_2"),
)


@dataclasses.dataclass(frozen=True)
class Variant:
    """One of RULER's tasks.

    Attributes:
        name: of the task.
        kind: niah, variable_tracking, common_words_extraction, freq_words_extraction or qa.
        args: its parameters.
        template: the prompt, with `{context}` and perhaps more placeholders.
        prefix: the beginning of the answer, perhaps with placeholders.
        new_tokens: the most tokens of an answer.
    """

    name: str
    kind: str
    args: Mapping[str, Any]
    template: str
    prefix: str
    new_tokens: int


class Prompt(NamedTuple):
    """A prompt in the parts that are read one after the other, with the answers.

    Attributes:
        context: all up to the question, with the white space before it.
        question: the text after the context.
        prefix: the beginning of the answer.
        answers: the right ones.
    """

    context: str
    question: str
    prefix: str
    answers: tuple[str, ...]

    @property
    def text(self) -> str:
        """The whole prompt."""
        return self.context + self.question + self.prefix


class Sample(Protocol):
    """A sample whose length follows from a number of units: lines, words or documents."""

    @property
    def least(self) -> int:
        """The smallest number of units."""

    @property
    def most(self) -> int | None:
        """The largest number of units; None without such a number."""

    def prompt(self, units: int) -> Prompt:
        """The prompt with so many units."""


@functools.cache
def content() -> dict[str, Any]:
    """All that `ruler.json` holds."""
    path = resources.files("contextlab.benchmarks.prompts") / "ruler.json"
    texts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return texts


def variant(name: str) -> Variant:
    """The variant of a name."""
    task = content()["tasks"][name]
    form = content()["templates"][task["task"]]
    return Variant(
        name, task["task"], task["args"], form["template"], form["answer_prefix"], form["tokens_to_generate"]
    )


def filled(form: Variant, context: str, answers: tuple[str, ...], **values: Any) -> Prompt:
    """The prompt of a variant.

    Args:
        form: the variant.
        context: in place of `{context}`.
        answers: the right ones.
        **values: in place of the other placeholders.
    """
    head, tail = form.template.split("{context}")
    question = tail.lstrip()
    space = tail.removesuffix(question)
    return Prompt(
        head.format(**values) + context + space, question.format(**values), form.prefix.format(**values), answers
    )
