"""Irrelevant sentences in which facts are hidden: of books of the data folder, or of generated stories."""

from __future__ import annotations

import bisect
import dataclasses
import functools
import hashlib
import random
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from contextlab import files
from contextlab.benchmarks.data import sources
from contextlab.benchmarks.data.sample import story
from contextlab.errors import UserError

NoiseName = Literal["auto", "pg19", "pg22", "stories"]
FOLDERS = {"pg19": "test", "pg22": "texts"}
"""By data set, the folder of its books."""
STORIES, STORY_WORDS, STORY_SEED = 8, 6_000, 51
SHORTEST = 10
"""The least tokens of a sentence, as in BABILong."""
NEAR = 8
"""Characters on both sides of a cut among which the best one is looked for."""
SENTENCE_END = re.compile(
    r"(?<!\bMr\.)(?<!\bMrs\.)(?<!\bDr\.)(?<!\bSt\.)"
    r"(?:(?<=[.!?])|(?<=[.!?][\"\u201d\u2019)\]]))\s(?=[\"\u201c\u2018(\[_]?[A-Z])"
)
"""The space after the end of a sentence and before a capital letter, but not after a title."""


@dataclasses.dataclass(frozen=True)
class Noise:
    """Texts whose sentences are used as noise.

    Attributes:
        about: what they are, for notes.
        sha256: digest of the texts.
        books: their files; generated stories when empty.
    """

    about: str
    sha256: str
    books: tuple[Path, ...] = ()

    @functools.cached_property
    def texts(self) -> tuple[tuple[str, ...], ...]:
        """The sentences of every text.

        Raises:
            UserError: when a book cannot be read.
        """
        texts = [sources.read(path)[0] for path in self.books] or map(_story, range(STORIES))
        return tuple(tuple(sentences(text)) for text in texts)

    def sentences(self, draw: random.Random, usable: Callable[[str], bool]) -> Iterator[str]:
        """Sentences without end: from a random place to the end of a random text, then of further random texts.

        Args:
            draw: chooses texts and places.
            usable: whether a sentence may be taken.

        Raises:
            UserError: when no sentence of all texts may be taken.
        """
        if not any(usable(sentence) for text in self.texts for sentence in text):
            raise UserError(f"No sentence of {self.about} is long enough to be used: choose noise=stories.")
        while True:
            text = self.texts[below(len(self.texts), draw)]
            yield from filter(usable, text[below(len(text), draw) if text else 0 :])


def noise(name: NoiseName, data: Path | None) -> Noise:
    """The noise of a name: the books of a data set, or generated stories; `auto` takes those of pg19 where it is there.

    Raises:
        UserError: when there are no such books.
    """
    folder = None if name == "stories" else _folder(name, data)
    if folder is None:
        return Noise("generated stories", hashlib.sha256(_story(0).encode()).hexdigest())
    books = tuple(path for path in sorted(folder.iterdir()) if path.name.removesuffix(".gz").endswith(".txt"))
    if not books:
        raise UserError(f"{folder} holds no books: put .txt or .txt.gz files there, or choose noise=stories.")
    digests = "".join(f"{files.sha256(path)}  {path.name}\n" for path in books)
    about = f"{len(books)} book{'s' * (len(books) > 1)} of {folder.parent.name}"
    return Noise(about, hashlib.sha256(digests.encode()).hexdigest(), books)


def sentences(text: str) -> list[str]:
    """The sentences of a text, whose lines are joined: cut by a rule that needs no download and never changes."""
    return SENTENCE_END.split(" ".join(text.split()))


def hidden(
    facts: Sequence[str],
    gaps: Callable[[int], Sequence[int]],
    noise: Iterator[str],
    tokens: int,
    count: Callable[[str], int],
    after: str = "",
) -> str:
    """Facts between sentences of noise, which are taken until the text is as long as wanted.

    The last sentence is cut where the length is reached. Facts that are longer alone stand without noise.

    Args:
        facts: in the order in which they stand in the text.
        gaps: for a number of sentences, the number of sentences before each of the facts, in rising order.
        noise: the sentences.
        tokens: of the text and what follows it.
        count: tokens of a text.
        after: what follows the text.
    """

    def room(noise_sentences: Sequence[str]) -> int:
        return tokens - count(" ".join([*facts, *noise_sentences]) + after)

    noise_sentences: list[str] = []
    rest = room(noise_sentences)
    while rest > 0:
        sentence = next(noise)
        cost = count(f" {sentence}")
        if cost >= rest:
            rest = room(noise_sentences)  # the sum over the sentences may be a little off
        if cost < rest:
            noise_sentences.append(sentence)
            rest -= cost
        else:
            beginning = first_tokens(sentence, rest, lambda part: count(f" {part}"))
            noise_sentences += [beginning] if beginning else []
            break
    return " ".join(placed(facts, gaps(len(noise_sentences)), noise_sentences))


def first_tokens(text: str, tokens: int, count: Callable[[str], int]) -> str:
    """The longest beginning of a text that has the most tokens, up to a number of them."""
    counts = functools.cache(lambda end: count(text[:end].rstrip()) if end else 0)
    near = bisect.bisect_right(range(len(text) + 1), max(tokens, 0), key=counts)
    # One more character may also lower the number of tokens.
    ends = (end for end in range(max(near - NEAR, 0), min(near + NEAR, len(text)) + 1) if counts(end) <= max(tokens, 0))
    return text[: max(ends, key=lambda end: (counts(end), end))].rstrip()


def placed(facts: Sequence[str], gaps: Sequence[int], sentences: Sequence[str]) -> list[str]:
    """Sentences with facts between them: each after as many sentences as its gap says."""
    parts: list[str] = []
    waiting = list(zip(gaps, facts, strict=True))
    for number in range(len(sentences) + 1):
        while waiting and waiting[0][0] <= number:
            parts.append(waiting.pop(0)[1])
        parts += sentences[number : number + 1]
    return parts


def random_gaps(facts: int, draw: random.Random) -> Callable[[int], list[int]]:
    """Gaps that are drawn with replacement, so that several facts may share one, as BABILong draws them."""
    return lambda sentences: sorted(below(sentences + 1, draw) for _ in range(facts))


def below(number: int, draw: random.Random) -> int:
    """A random number from 0 to `number` - 1, from the only function whose sequence Python guarantees."""
    return int(draw.random() * number)


def ordered(items: Sequence[str], draw: random.Random) -> list[str]:
    """The items in random order."""
    return [item for _, item in sorted((draw.random(), item) for item in items)]


def _story(index: int) -> str:
    return story(STORY_WORDS, STORY_SEED, index).text


def _folder(name: str, data: Path | None) -> Path | None:
    """The folder of the books of a name; None where `auto` finds none."""
    dataset = "pg19" if name == "auto" else name
    try:
        path = sources.locate_folder(dataset, FOLDERS[dataset], data).path
    except UserError:
        if name == "auto":
            return None
        raise
    if path is None and name != "auto":
        raise UserError(f"There are no books of {name} here: name a data folder with --data, or choose noise=stories.")
    return path
