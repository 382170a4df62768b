"""The kinds of examples: what a task gives to its protocol."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, Protocol, runtime_checkable


@runtime_checkable
class Example(Protocol):
    """What the harness knows of every example."""

    @property
    def id(self) -> str:
        """Unlike that of every other example of a data set."""

    @property
    def work(self) -> str:
        """What it is a part of: its context is no wrong one for another part."""


class Alone:
    """An example that is a work of its own."""

    id: str

    @property
    def work(self) -> str:
        """The example itself."""
        return self.id


@dataclasses.dataclass(frozen=True)
class Choice:
    """A context and the texts that may follow it, of which one does."""

    id: str
    work: str
    context: str
    candidates: tuple[str, ...]
    answer: int


@dataclasses.dataclass(frozen=True)
class Document(Alone):
    """A text to be read from its beginning."""

    id: str
    text: str


@dataclasses.dataclass(frozen=True)
class Question:
    """Something asked after a text.

    Attributes:
        id: unlike that of every other question of a data set.
        text: the question.
        answers: any of which is right.
        options: the answers to choose from; empty where one is to be written.
        details: whatever a result is stored or broken down with.
        place: character of the context from which on it tells the answer, where that is known.
    """

    id: str
    text: str
    answers: tuple[str, ...]
    options: tuple[str, ...] = ()
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    place: int | None = None


@dataclasses.dataclass(frozen=True)
class Reading:
    """A context that is read once, and all that is asked about it.

    Attributes:
        id: unlike that of every other reading.
        work: what is drawn together with it in an interval, and is no wrong context for it.
        context: the text.
        questions: about it.
        shown: the demonstrations that the context is made of, where it is.
    """

    id: str
    work: str
    context: str
    questions: tuple[Question, ...]
    shown: tuple[Question, ...] = dataclasses.field(default=(), repr=False)


@dataclasses.dataclass(frozen=True)
class Passage:
    """A text and the questions that it answers."""

    text: str
    questions: tuple[Question, ...]


@dataclasses.dataclass(frozen=True)
class Form:
    """How a classification is put into words.

    Attributes:
        instruction: what every prompt begins with.
        example: a demonstration, with `{text}` and `{label}`; a test item is the part before ` {label}`.
        words: by class, the words that stand for it; their probabilities add up, demonstrations use the first.
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
    """A text to be classified, and those that demonstrations may be drawn from."""

    train: tuple[Labelled, ...] = dataclasses.field(repr=False)


Scoring = Literal["template", "label", "greedy"]


@dataclasses.dataclass(frozen=True)
class Template:
    """How a classification is put into words.

    Attributes:
        form: a demonstration, with `{text}` and `{label}`.
        labels: by class, the words that stand for it; their probabilities add up, demonstrations use the first.
        separator: what follows every demonstration.
        scoring: the paper's way to find the class.
        instruction: what every prompt begins with.
        cleaning: what is replaced by what in every text before it is put in, in this order.
    """

    form: str
    labels: tuple[tuple[str, ...], ...]
    separator: str
    scoring: Scoring
    instruction: str = ""
    cleaning: tuple[tuple[str, str], ...] = ()

    def clean(self, one: Labelled) -> Labelled:
        """A text as the paper's authors clean it."""
        if not self.cleaning:
            return one
        text = one.text
        for debris, clean in self.cleaning:
            text = text.replace(debris, clean)
        return dataclasses.replace(one, text=text)


@dataclasses.dataclass(frozen=True)
class Block(Alone):
    """Texts that are asked about after the same demonstrations, and those that these may be drawn from."""

    id: str
    items: tuple[Labelled, ...]
    train: tuple[Labelled, ...] = dataclasses.field(repr=False)


@dataclasses.dataclass(frozen=True)
class Session:
    """What was said at one time, in turns of speaker and text."""

    heading: str
    turns: tuple[tuple[str, str], ...]

    @property
    def text(self) -> str:
        """The heading and a line for each turn."""
        return "\n".join((self.heading, *(f"{speaker}: {text}" for speaker, text in self.turns)))


@dataclasses.dataclass(frozen=True)
class Dialogue:
    """Earlier sessions as one text, and a session that follows them."""

    id: str
    work: str
    earlier: str
    last: Session
