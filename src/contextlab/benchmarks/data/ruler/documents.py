"""Questions about documents among other documents (upstream's `qa.py`)."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator, Sequence

from contextlab.benchmarks.data.ruler.variants import Prompt, Variant, content, filled
from contextlab.benchmarks.data.ruler.words import generator
from contextlab.benchmarks.data.sample import Story, story
from contextlab.benchmarks.examples import Passage

STORY_WORDS, STORY_SEED = 130, 33
HIDDEN = re.compile(r"Where has (.+) hidden the (.+)\?")


@dataclasses.dataclass(frozen=True)
class DocumentQuestion:
    """A question about some of the documents.

    Attributes:
        text: the question.
        answers: the right ones.
        own: numbers of the documents that it needs.
        related: numbers of the documents that are taken before any others.
        barred: numbers of the documents that would give another answer.
    """

    text: str
    answers: tuple[str, ...]
    own: tuple[int, ...]
    related: tuple[int, ...] = ()
    barred: frozenset[int] = frozenset()


@dataclasses.dataclass(frozen=True)
class DocumentCorpus:
    """Documents with questions about them."""

    documents: tuple[str, ...]
    questions: tuple[DocumentQuestion, ...]


class DocumentSample:
    """A sample with a question.

    Args:
        form: the variant.
        corpus: of the question.
        question: one of the corpus.
        identity: what all that is drawn follows from.
    """

    def __init__(self, form: Variant, corpus: DocumentCorpus, question: DocumentQuestion, identity: str) -> None:
        self._form, self._documents, self._question, self._identity = form, corpus.documents, question, identity
        draw, excluded = generator(identity, "documents"), {*question.own, *question.related, *question.barred}
        related = [number for number in question.related if number not in question.barred]
        others = [number for number in range(len(corpus.documents)) if number not in excluded]
        draw.shuffle(related)
        draw.shuffle(others)
        self._order = [*question.own, *related, *others]
        self.least, self.most = len(question.own), len(self._order)

    def prompt(self, units: int) -> Prompt:
        """The prompt with so many documents."""
        numbers = self._order[:units]
        generator(self._identity, units).shuffle(numbers)
        form: str = content()["document"]
        texts = (form.format(i=n, document=self._documents[number]) for n, number in enumerate(numbers, start=1))
        return filled(self._form, "\n\n".join(texts), self._question.answers, query=self._question.text)


def of_articles(articles: Sequence[Sequence[Passage]]) -> DocumentCorpus:
    """Passages in articles: those of the same article are related."""
    documents = tuple(dict.fromkeys(passage.text for article in articles for passage in article))
    numbers = {text: number for number, text in enumerate(documents)}
    questions = []
    for article in articles:
        members = dict.fromkeys(numbers[passage.text] for passage in article)
        for passage in article:
            own = numbers[passage.text]
            related = tuple(number for number in members if number != own)
            questions += [
                DocumentQuestion(question.text, question.answers, (own,), related) for question in passage.questions
            ]
    return DocumentCorpus(documents, tuple(questions))


def stories(tokens: int) -> list[Story]:
    """Generated stories, more than have so many tokens."""
    return [story(STORY_WORDS, STORY_SEED, index) for index in range(max(200, tokens // 100))]


def of_stories(tales: Sequence[Story]) -> DocumentCorpus:
    """Questions about what a generated story says."""
    stories_by_question = _stories_by_question(tales)
    questions = [
        DocumentQuestion(
            fact.question, (fact.answer,), (number,), barred=frozenset(stories_by_question[fact.question]) - {number}
        )
        for number, tale in enumerate(tales)
        for fact in tale.facts
    ]
    return DocumentCorpus(_texts(tales), tuple(questions))


def of_two_stories(tales: Sequence[Story]) -> DocumentCorpus:
    """Questions that need what two stories say: what one promises to a person, and what that person hides."""
    return DocumentCorpus(_texts(tales), tuple(_joined(tales)))


def _joined(tales: Sequence[Story]) -> Iterator[DocumentQuestion]:
    stories_by_question = _stories_by_question(tales)
    hidden = [(number, *_hidden(fact.question), fact) for number, tale in enumerate(tales) for fact in tale.facts[::2]]
    promised = [fact for tale in tales for fact in tale.facts[1::2]]
    by_person: dict[str, list[int]] = {}
    for place, (_, person, *_) in enumerate(hidden):
        by_person.setdefault(person, []).append(place)
    for (number, person, thing, _), promise in zip(hidden, promised, strict=True):
        for place in by_person.get(promise.answer, ()):
            other, _, second, fact = hidden[place]
            if other != number:
                text = f"Where has the person to whom {person} has promised the {thing} hidden the {second}?"
                barred = frozenset(
                    itertools.chain(stories_by_question[promise.question], stories_by_question[fact.question])
                ) - {number, other}
                yield DocumentQuestion(text, (fact.answer,), (number, other), barred=barred)


def _hidden(question: str) -> tuple[str, str]:
    """Person and thing of a question that asks where it is hidden."""
    match = HIDDEN.fullmatch(question)
    assert match is not None, question
    return match[1], match[2]


def _stories_by_question(tales: Sequence[Story]) -> dict[str, list[int]]:
    """By question, the numbers of the stories that answer it."""
    stories_by_question: dict[str, list[int]] = {}
    for number, tale in enumerate(tales):
        for fact in tale.facts:
            stories_by_question.setdefault(fact.question, []).append(number)
    return stories_by_question


def _texts(tales: Sequence[Story]) -> tuple[str, ...]:
    return tuple("\n\n".join(tale.chapters) for tale in tales)
