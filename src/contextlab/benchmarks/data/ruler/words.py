"""The words, numbers and identifiers that RULER plants; words are those of the package wonderwords, as upstream's."""

from __future__ import annotations

import functools
import random
import uuid
from importlib.metadata import version

from contextlab.errors import UserError

DIGITS = 7


def generator(*parts: object) -> random.Random:
    """A generator of random numbers that follows from these parts alone."""
    return random.Random("/".join(map(str, parts)))


def drawn(kind: str, draw: random.Random) -> str:
    """A word, number or uuid."""
    if kind == "words":
        return pair(draw)
    if kind == "numbers":
        return str(draw.randint(10 ** (DIGITS - 1), 10**DIGITS - 1))
    return str(uuid.UUID(int=draw.getrandbits(128), version=4))


def fresh(kind: str, draw: random.Random, used: set[str]) -> str:
    """As `drawn`, and not among those that are used, to which it is added."""
    value = drawn(kind, draw)
    while value in used:
        value = drawn(kind, draw)
    used.add(value)
    return value


def pair(draw: random.Random) -> str:
    """An adjective and a noun with a hyphen between them."""
    return f"{draw.choice(listed('adjective'))}-{draw.choice(listed('noun'))}"


@functools.cache
def single_words() -> tuple[str, ...]:
    """All nouns, adjectives and verbs, sorted."""
    return tuple(sorted({word for kind in ("noun", "adjective", "verb") for word in listed(kind)}))


@functools.cache
def listed(kind: str) -> tuple[str, ...]:
    """All words of a kind, sorted.

    Raises:
        UserError: without wonderwords.
    """
    try:
        from wonderwords import RandomWord
    except ImportError as error:
        raise UserError(f"ruler needs wonderwords ({error}): pip install 'contextlab[ruler]'.") from error
    return tuple(sorted(set(RandomWord().filter(include_categories=[kind]))))


def edition() -> str:
    """The version of the lists.

    Raises:
        UserError: without wonderwords.
    """
    listed("noun")
    return version("wonderwords")
