"""The types of examples that tasks load and protocols evaluate."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, Protocol, runtime_checkable


@runtime_checkable
class Example(Protocol):
    """The fields that every example has."""

    @property
    def id(self) -> str:
        """A name that no other example of the data set has."""

    @property
    def work(self) -> str:
        """The work (book, article) it is part of; a wrong context comes from another work."""


class Alone:
    """An example whose text is the whole work."""

    id: str

    @property
    def work(self) -> str:
        """The example itself."""
        return self.id


@dataclasses.dataclass(frozen=True)
class Choice:
    """A context and candidates, one of which is the true continuation."""

    id: str
    work: str
    context: str
    candidates: tuple[str, ...]
    answer: int


@dataclasses.dataclass(frozen=True)
class Document:
    """A text that is read from its beginning.

    Attributes:
        id: a name that no other document of the data set has.
        text: the text.
        cluster: the work it is part of; itself when None.
    """

    id: str
    text: str
    cluster: str | None = None

    @property
    def work(self) -> str:
        """The work it is part of."""
        return self.id if self.cluster is None else self.cluster


@dataclasses.dataclass(frozen=True)
class Question:
    """A question about a text.

    Attributes:
        id: a name that no other question of the data set has.
        text: the question.
        answers: the right answers.
        options: the answers to choose from; empty where the answer is written.
        details: fields that are stored with the result, for metrics by category.
        place: index of the character in the context that the distance to the answer counts from, where it is known.
        prefix: the beginning of the answer, which is given.
        max_new_tokens: the most tokens of its answer; None for those of the protocol.
    """

    id: str
    text: str
    answers: tuple[str, ...]
    options: tuple[str, ...] = ()
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    place: int | None = None
    prefix: str = dataclasses.field(default="", repr=False)
    max_new_tokens: int | None = dataclasses.field(default=None, repr=False)


@dataclasses.dataclass(frozen=True)
class Reading:
    """A context that is read once, with all questions about it.

    Attributes:
        id: a name that no other reading of the data set has.
        work: the work it is part of: a cluster in intervals; a wrong context comes from another work.
        context: the text.
        questions: the questions about it.
        shown: the demonstrations, where the context consists of demonstrations.
    """

    id: str
    work: str
    context: str
    questions: tuple[Question, ...]
    shown: tuple[Question, ...] = dataclasses.field(default=(), repr=False)


@dataclasses.dataclass(frozen=True)
class Passage:
    """A text with questions about it."""

    text: str
    questions: tuple[Question, ...]


@dataclasses.dataclass(frozen=True)
class Form:
    """The prompt of a classification.

    Attributes:
        instruction: the beginning of every prompt.
        example: a demonstration, with `{text}` and `{label}`; a test item is the part before ` {label}`.
        words: by class, its label words, whose probabilities are summed; demonstrations use the first.
    """

    instruction: str
    example: str
    words: tuple[tuple[str, ...], ...]


@dataclasses.dataclass(frozen=True)
class Labelled(Alone):
    """A text and the number of its class."""

    id: str
    text: str
    label: int


@dataclasses.dataclass(frozen=True)
class Item(Labelled):
    """A text to classify, and the training texts that demonstrations are drawn from."""

    train: tuple[Labelled, ...] = dataclasses.field(repr=False)


Scoring = Literal["template", "label", "greedy"]


@dataclasses.dataclass(frozen=True)
class Template:
    """The prompt of a classification, in the template of a paper.

    Attributes:
        form: a demonstration, with `{text}` and `{label}`.
        labels: by class, its label words, whose probabilities are summed; demonstrations use the first.
        separator: the text after every demonstration.
        scoring: how the paper predicts the class.
        instruction: the beginning of every prompt.
        cleaning: pairs of a string and its replacement, applied to every text in this order.
    """

    form: str
    labels: tuple[tuple[str, ...], ...]
    separator: str
    scoring: Scoring
    instruction: str = ""
    cleaning: tuple[tuple[str, str], ...] = ()

    def clean(self, demonstration: Labelled) -> Labelled:
        """A text, cleaned as in the paper."""
        if not self.cleaning:
            return demonstration
        text = demonstration.text
        for debris, clean in self.cleaning:
            text = text.replace(debris, clean)
        return dataclasses.replace(demonstration, text=text)


@dataclasses.dataclass(frozen=True)
class Block(Alone):
    """Texts to classify after the same demonstrations, and the training texts that these are drawn from."""

    id: str
    items: tuple[Labelled, ...]
    train: tuple[Labelled, ...] = dataclasses.field(repr=False)


@dataclasses.dataclass(frozen=True)
class Session:
    """One session of a conversation, in turns of speaker and text."""

    heading: str
    turns: tuple[tuple[str, str], ...]

    @property
    def text(self) -> str:
        """The heading and a line for each turn."""
        return "\n".join((self.heading, *(f"{speaker}: {text}" for speaker, text in self.turns)))


@dataclasses.dataclass(frozen=True)
class Dialogue:
    """Earlier sessions as one text, and the session after them."""

    id: str
    work: str
    earlier: str
    last: Session
