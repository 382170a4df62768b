"""The generated sample: stories of a small world, for a first run without any data.

People hide things that they have promised to somebody. More than a thousand words later a chapter begins in which
three of these things are fetched. Who hid what where, and for whom, is said only once. The right continuation of a
chapter break can only be known from this sentence, and says it in other words. Everything follows from `(seed, index)`;
the only function of the standard generator is `random.Random.random`, whose sequence Python guarantees.
"""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Callable, Sequence
from typing import TypeVar

from contextlab.benchmarks.data import phrases
from contextlab.benchmarks.data.sources import shuffled
from contextlab.benchmarks.examples import Choice, Document

T = TypeVar("T")

FAR = 1_000
"""The least number of words between a promise and the chapter that fetches the thing."""
TOGETHER = 3
"""Promises that one chapter fetches."""
CAST = 24
CHAPTER_WORDS = 600
PROMISES_A_CHAPTER = 2
HIDING_WORDS = 75
"""The most words of a paragraph in which something is hidden."""
TOKENS_PER_WORD = 1.3
SUFFIX_TOKENS = 128


@dataclasses.dataclass(frozen=True)
class Fact:
    """A fact that a story says once, with the number of words from there to the end of the story."""

    question: str
    answer: str
    distance: int


@dataclasses.dataclass(frozen=True)
class Story:
    """A story in chapters, and facts about the things that are still hidden at its end."""

    chapters: tuple[str, ...]
    facts: tuple[Fact, ...]

    @property
    def text(self) -> str:
        """The chapters under their headings."""
        return "\n\n".join(f"Chapter {n}\n\n{chapter}" for n, chapter in enumerate(self.chapters, start=1)) + "\n"


def story(words: int, seed: int, index: int = 0) -> Story:
    """A story of at least `words` words and at most 200 more, without headings."""
    teller = _Teller(seed, index)
    teller.tell(words)
    return teller.story()


def documents(words: int, n: int, seed: int) -> tuple[Document, ...]:
    """`n` stories of at least `words` words each."""
    return tuple(Document(f"sample/{seed}-{index}", story(words, seed, index).text) for index in range(n))


def planted(words: int, distances: Sequence[int], seed: int, index: int = 0) -> tuple[Story, tuple[Fact, ...]]:
    """A story of about `words` words with one promise for each distance from its end, within one or two paragraphs.

    Nothing else in the story names a promise's people, thing, place or spot. The facts are in the order of the
    distances, two for each: where, and for whom. The second result holds as many facts that do not occur in the story.
    """
    teller = _Teller(seed, index)
    promises, untold = teller.reserve(len(distances)), teller.withhold(len(distances))
    plan = [(max(0, words - distance - HIDING_WORDS * 2 // 3), n) for n, distance in enumerate(distances)]
    teller.tell(words, [(position, promises[n]) for position, n in sorted(plan)])
    return Story(tuple(teller.chapters), teller.facts(promises)), teller.facts(untold)


def choices(context_words: int, n: int, seed: int) -> tuple[Choice, ...]:
    """`n` chapter breaks, each after a story of at least `context_words` words, with six candidates.

    Three promises occur at different positions at least `FAR` words before the break, and late enough that a context
    of `context_words` tokens holds them; in contexts under about 2,000 words they are nearer. Every candidate fetches
    all three things with the same words. The true candidate agrees with the story; in the others places, spots and
    receivers are exchanged among the three, so that no promise is right. All candidates share equally many sequences
    of words with the context, of every length.
    """
    return tuple(_choice(context_words, seed, index) for index in range(n))


def _choice(context_words: int, seed: int, index: int) -> Choice:
    teller = _Teller(seed, index)
    reach = int((context_words - SUFFIX_TOKENS) / TOKENS_PER_WORD)
    block = TOGETHER * HIDING_WORDS
    near = min(FAR, max(reach - 2 * block, reach // 4))
    first = context_words - max(reach - block, near + block)
    step = (context_words - near - HIDING_WORDS - first) / (TOGETHER - 1)
    promises = teller.reserve()
    teller.tell(context_words - near, [(first + int(i * step), promise) for i, promise in enumerate(promises)])
    teller.tell(max(context_words, teller.words + near))
    true, *others = _render(teller.returning(), [promises, *_exchanged(promises)])
    identity = f"sample/{seed}-{index}"
    candidates, answer = shuffled(f"{identity}/0", true, others)
    return Choice(f"{identity}/0", identity, "\n\n".join(teller.chapters), candidates, answer)


@dataclasses.dataclass(frozen=True)
class _Person:
    name: str
    trade: str
    he: str
    him: str


@dataclasses.dataclass
class _Promise:
    """Who hid what, where, and for whom; `words_before` is the number of words of the story before it is said."""

    giver: _Person
    receiver: _Person
    thing: str
    place: str
    spot: str
    words_before: int = -1


def _exchanged(promises: Sequence[_Promise]) -> list[list[_Promise]]:
    """Three promises with spots, places and receivers exchanged in five ways.

    Of any three neighbours in the ring of permutations one moves all, so that every promise changes.
    """
    ring = [(1, 0, 2), (1, 2, 0), (2, 1, 0), (2, 0, 1), (0, 2, 1)]
    return [
        [
            dataclasses.replace(
                promise,
                spot=promises[ring[turn][i]].spot,
                place=promises[ring[turn - 1][i]].place,
                receiver=promises[ring[turn - 2][i]].receiver,
            )
            for i, promise in enumerate(promises)
        ]
        for turn in range(len(ring))
    ]


def _render(opening: Sequence[tuple[str, int]], fillings: Sequence[Sequence[_Promise]]) -> list[str]:
    return [" ".join(text.format_map(_slots(filling[i])) for text, i in opening) for filling in fillings]


def _slots(promise: _Promise) -> dict[str, str]:
    giver = promise.giver
    return {
        "P": giver.name,
        "trade": giver.trade,
        "he": giver.he,
        "him": giver.him,
        "R": promise.receiver.name,
        "O": f"the {promise.thing}",
        "L": f"the {promise.place}",
        "H": promise.spot,
        "H_": promise.spot[0].upper() + promise.spot[1:],
    }


class _Teller:
    """A world, and the story about it so far."""

    def __init__(self, seed: int, index: int) -> None:
        self._random: Callable[[], float] = random.Random(seed * 1_000_003 + index).random
        people = [(name, "she", "her") for name in phrases.WOMEN]
        people += [(name, "he", "him") for name in phrases.MEN]
        trades = self._shuffle(phrases.TRADES)
        everybody = self._shuffle(people)
        cast = zip(everybody[:CAST], trades, strict=False)
        self._people = [_Person(name, trade, *pronouns) for (name, *pronouns), trade in cast]
        self._strangers = [_Person(name, "", *pronouns) for name, *pronouns in everybody[CAST:]]
        self._things = self._shuffle(phrases.THINGS)
        self._places = self._shuffle(phrases.PLACES)
        self._spots = self._shuffle(phrases.SPOTS)
        self._owned: dict[str, _Person] = {}
        self._kept: list[_Promise] = []
        self._subjects: list[list[_Phrase]] = []
        self.chapters: list[str] = []
        self.words = 0

    def pick(self, items: Sequence[T]) -> T:
        return items[int(self._random() * len(items))]

    def _shuffle(self, items: Sequence[T]) -> list[T]:
        return [item for _, _, item in sorted((self._random(), i, item) for i, item in enumerate(items))]

    def reserve(self, count: int = TOGETHER) -> list[_Promise]:
        """Promises whose people, things, places and spots do not occur elsewhere in the story."""
        return [self._promise(self._people.pop(), self._people.pop()) for _ in range(count)]

    def withhold(self, count: int) -> list[_Promise]:
        """Promises whose people, things, places and spots do not occur in the story."""
        return [self._promise(self._strangers.pop(), self._strangers.pop()) for _ in range(count)]

    def _promise(self, giver: _Person, receiver: _Person) -> _Promise:
        return _Promise(giver, receiver, self._things.pop(0), self._places.pop(0), self._spots.pop(0))

    def tell(self, words: int, plan: Sequence[tuple[int, _Promise]] = ()) -> None:
        """Add chapters until there are `words` words, with each promise of the plan at its position in words."""
        todo = list(plan)
        while self.words < words:
            paragraphs = [self._beginning()]
            end = min(words, self.words + int(CHAPTER_WORDS * (0.7 + 0.6 * self._random())))
            hide_at = sorted(self.words + int(self._random() * (end - self.words)) for _ in range(PROMISES_A_CHAPTER))
            while self.words < end:
                if todo and self.words >= todo[0][0]:
                    paragraphs.append(self._hide(todo.pop(0)[1]))
                elif hide_at and self.words >= hide_at[0]:
                    hide_at.pop(0)
                    paragraphs.append(self._hide(self._new_promise()))
                else:
                    paragraphs.append(self._everyday())
            self.chapters.append("\n\n".join(paragraphs))
        for _, promise in todo:
            self.chapters[-1] += "\n\n" + self._hide(promise)

    def story(self) -> Story:
        """The story so far, with facts about the promises that are not yet kept."""
        return Story(tuple(self.chapters), self.facts(self._kept))

    def facts(self, promises: Sequence[_Promise]) -> tuple[Fact, ...]:
        """Two facts for each promise, with their distances from the present end of the story."""
        facts = []
        for promise in promises:
            who, what, distance = promise.giver.name, promise.thing, self.words - promise.words_before
            where = f"{promise.spot} at the {promise.place}"
            facts.append(Fact(f"Where has {who} hidden the {what}?", where, distance))
            facts.append(Fact(f"To whom has {who} promised the {what}?", promise.receiver.name, distance))
        return tuple(facts)

    def returning(self) -> list[tuple[str, int]]:
        """As `opening`, without any sequence of words that occurs where the promises are said."""
        rows = [zip(self._shuffle(row), range(TOGETHER), strict=True) for row in _RETURNING]
        chosen = [(self.pick(_DUE), 0), *(phrase for row in rows for phrase in row)]
        return [(self._word(phrase), i) for phrase, i in chosen]

    def opening(self) -> list[tuple[str, int]]:
        """The beginning of a chapter that fetches things: sentences, and the number of the promise in each."""
        recalling, fetching, numbers = self._shuffle(_RECALLING), self._shuffle(_FETCHING), range(TOGETHER)
        chosen = [(self.pick(_DUE), 0), *zip(recalling, numbers, strict=True), *zip(fetching, numbers, strict=True)]
        return [(self._word(phrase), i) for phrase, i in chosen]

    def _beginning(self) -> str:
        """Fetch the things that were hidden first, if that is long enough ago."""
        due = self._kept[:TOGETHER]
        if len(due) < TOGETHER or self.words - due[-1].words_before <= FAR:
            return self._everyday()
        del self._kept[:TOGETHER]
        for promise in due:
            self._owned[promise.thing] = promise.receiver
            self._things.append(promise.thing)
            self._places.append(promise.place)
            self._spots.append(promise.spot)
        return self._count(_render(self.opening(), [due])[0])

    def _new_promise(self) -> _Promise:
        """A promise by the owner of a thing, or by anybody where it has none, to somebody else."""
        busy = {promise.giver.name for promise in self._kept}
        free = [person for person in self._people if person.name not in busy]
        self._things.sort(key=lambda thing: thing in self._owned and self._owned[thing] not in free)
        giver = self._owned.get(self._things[0]) or self.pick(free)
        receiver = self.pick([person for person in self._people if person is not giver])
        promise = self._promise(giver, receiver)
        self._kept.append(promise)
        return promise

    def _hide(self, promise: _Promise) -> str:
        promise.words_before = self.words
        return self._count(self._word(self.pick(_HIDING)).format_map(_slots(promise)))

    def _everyday(self) -> str:
        """A paragraph on a subject that has not been used since all others were."""
        self._subjects = self._subjects or self._shuffle(_EVERYDAY)
        first, *others = self._subjects.pop()
        a = self.pick(self._people)
        b = self.pick([person for person in self._people if person is not a])
        slots = {"A": a.name, "B": b.name, "trade_A": a.trade, "trade_B": b.trade}
        sentences = [self._word(phrase) for phrase in (first, *(other for other in others if self._random() < 0.55))]
        return self._count(" ".join(sentences).format_map(slots))

    def _word(self, phrase: _Phrase) -> str:
        return "".join([part if isinstance(part, str) else self.pick(part) for part in phrase])

    def _count(self, paragraph: str) -> str:
        self.words += len(paragraph.split())
        return paragraph


_Phrase = tuple[str | tuple[str, ...], ...]


def _parse(phrase: str) -> _Phrase:
    """Literal parts and tuples of alternative wordings, in turns."""
    parts = re.split(r"\[([^\]]*)\]", re.sub("[“”]", '"', phrase))
    return tuple(tuple(part.split("|")) if i % 2 else part for i, part in enumerate(parts))


_DUE, _RECALLING, _FETCHING, _HIDING = (
    [_parse(phrase) for phrase in row] for row in (phrases.DUE, phrases.RECALLING, phrases.FETCHING, phrases.HIDING)
)
_RETURNING = [[_parse(phrase) for phrase in row] for row in phrases.RETURNING]
_EVERYDAY = [[_parse(phrase) for phrase in row] for row in phrases.EVERYDAY]
