"""Needles in a haystack of lines or of an essay (upstream's `niah.py`)."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Protocol

from contextlab.benchmarks.data.ruler.variants import Prompt, Variant, content, filled
from contextlab.benchmarks.data.ruler.words import drawn, fresh, generator

DEPTHS = tuple(round(100 * n / 39) for n in range(40))
"""The depths, in percent, that needles in an essay are drawn from."""
SINGULAR = (("Some", "A"), ("are all", "is"), ("are", "is"), ("answers", "answer"))


class Haystack(Protocol):
    """Text that hides needles."""

    def hiding(self, needles: Sequence[str], units: int, draw: random.Random) -> str:
        """The text of so many units with the needles in it."""


class LineHaystack:
    """Lines with needles between them, at distinct places.

    Args:
        lines: as many as are asked for; the first ones of a larger text are those of a smaller one.
    """

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines: list[str] = []
        self._rest = lines

    def hiding(self, needles: Sequence[str], units: int, draw: random.Random) -> str:
        """So many lines, and the needles."""
        self._lines += itertools.islice(self._rest, max(units - len(self._lines), 0))
        places = dict(zip(sorted(draw.sample(range(units), len(needles)), reverse=True), needles, strict=True))
        text = (line for n in range(units) for line in ([places[n]] if n in places else []) + [self._lines[n]])
        return "\n".join(text)


class EssayHaystack:
    """Sentences with needles between them, at depths that are drawn from 40.

    Args:
        sentences: of one text or of several, which begins again at its end.
    """

    def __init__(self, sentences: Sequence[str]) -> None:
        self._sentences = [sentence.split() for sentence in sentences]

    def hiding(self, needles: Sequence[str], units: int, draw: random.Random) -> str:
        """So many words, and the needles."""
        sentences = list(self._cut(units))
        places = sorted(len(sentences) * depth // 100 for depth in draw.sample(DEPTHS, len(needles)))
        parts = []
        for needle, (start, end) in zip(needles, itertools.pairwise([0, *places]), strict=True):
            parts += [" ".join(sentences[start:end]), needle]
        return " ".join([*parts, " ".join(sentences[places[-1] :])])

    def _cut(self, words: int) -> Iterator[str]:
        """The sentences of the first so many words."""
        for sentence in itertools.cycle(self._sentences):
            yield " ".join(sentence[:words])
            words -= len(sentence)
            if words <= 0:
                return


def needle(kind: str, key: str, value: str) -> str:
    """The sentence that says a value of a key; `kind` is that of the value."""
    return str(content()["needle"]).format(type_needle_v=kind, key=key, value=value)


class Needles:
    """A sample with needles.

    Args:
        form: the variant.
        haystack: noise, essay or needle.
        essay: of the haystack of that name.
        identity: what all that is drawn follows from.
        seed: of the order of needles, which is the same in every sample.
    """

    most = None

    def __init__(self, form: Variant, haystack: str, essay: Sequence[str], identity: str, seed: int) -> None:
        args = form.args
        draw, used = generator(identity, "needles"), set[str]()
        self._kind: str = args["type_needle_v"]
        of_key: str = args["type_needle_k"]
        values = {
            fresh(of_key, draw, used): [drawn(self._kind, draw) for _ in range(args["num_needle_v"])]
            for _ in range(max(args["num_needle_k"], args["num_needle_q"]))
        }
        self._needles = [needle(self._kind, key, value) for key in values for value in values[key]]
        generator(seed).shuffle(self._needles)
        keys = draw.sample(list(values), args["num_needle_q"])
        self._answers = tuple(value for key in keys for value in values[key])
        self._query = keys[0] if len(keys) == 1 else f"{', '.join(keys[:-1])}, and {keys[-1]}"
        self._form, self._identity = form if len(self._answers) > 1 else _singular(form), identity
        self.haystack = self._haystack(haystack, essay, of_key, used)
        self.least = len(self._needles)

    def prompt(self, units: int) -> Prompt:
        """The prompt with a haystack of so many lines or words."""
        context = self.haystack.hiding(self._needles, units, generator(self._identity, units))
        kind = self._kind if len(self._answers) > 1 else self._kind.removesuffix("s")
        return filled(self._form, context, self._answers, type_needle_v=kind, query=self._query)

    def _haystack(self, name: str, essay: Sequence[str], of_key: str, used: set[str]) -> Haystack:
        if name == "essay":
            return EssayHaystack(essay)
        if name == "noise":
            return LineHaystack(itertools.repeat(content()["noise_sentence"]))
        draw = generator(self._identity, "haystack")
        return LineHaystack(
            needle(self._kind, fresh(of_key, draw, used), drawn(self._kind, draw)) for _ in itertools.count()
        )


def _singular(form: Variant) -> Variant:
    """The variant in the words for a single value, by upstream's replacements."""
    template, prefix = form.template, form.prefix
    for plural, singular in SINGULAR:
        template, prefix = (text.replace(plural, singular) for text in (template, prefix))
    return dataclasses.replace(form, template=template, prefix=prefix)
