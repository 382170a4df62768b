"""The most common words of a list, and the most frequent words of a coded text.

Upstream's `common_words_extraction.py` and `freq_words_extraction.py`.
"""

from __future__ import annotations

import functools
import math
import string

from contextlab.benchmarks.data.ruler.variants import Prompt, Variant, filled
from contextlab.benchmarks.data.ruler.words import fresh, generator, single_words

SHORT = 4096
"""The limit below which words of a list are repeated less often."""
REPEATED_SHORT = (6, 1)
EXAMPLES = {True: (20, (3, 1)), False: (40, (10, 3))}
"""By whether the limit is below `SHORT`: different words of the worked example, and their numbers of repetitions."""
CODED_LETTERS, TOKENS_A_WORD, RANKED = 6, 50, 3
ZETA_2 = math.pi**2 / 6
LEAST_CODED = 53
"""From this number on the third word occurs more often than the fourth."""


class CommonWords:
    """A list in which ten words are repeated more often than all others.

    Args:
        form: the variant.
        identity: what all that is drawn follows from.
        limit: the most tokens of the prompt and its answer.
        repeated: how often the common and the other words are repeated; what upstream has for the limit when None.
        before: text before the prompt.
    """

    def __init__(
        self, form: Variant, identity: str, limit: int, repeated: tuple[int, int] | None = None, before: str = ""
    ) -> None:
        usual: tuple[int, int] = REPEATED_SHORT if limit < SHORT else (form.args["freq_cw"], form.args["freq_ucw"])
        self._form, self._identity, self._before = form, identity, before
        self._often, self._seldom = repeated or usual
        self.least: int = form.args["num_cw"]
        self.most = None

    @functools.cached_property
    def _words(self) -> list[str]:
        """All single words, in an order of its own."""
        return generator(self._identity, "words").sample(single_words(), len(single_words()))

    def prompt(self, units: int) -> Prompt:
        """The prompt with so many different words; pairs of words follow when there are no more single ones."""
        draw, used = generator(self._identity, units), set[str]()
        words = self._words[:units] + [fresh("words", draw, used) for _ in range(units - len(self._words))]
        common, others = words[: self.least], words[self.least :]
        entries = common * self._often + others * self._seldom
        draw.shuffle(entries)
        written = filled(self._form, numbered(entries), tuple(common))
        return written._replace(context=self._before + written.context)


def example(form: Variant, identity: str, limit: int) -> str:
    """A worked example, which stands before the prompt."""
    words, repeated = EXAMPLES[limit < SHORT]
    shown = CommonWords(form, f"{identity}/example", limit, repeated).prompt(words)
    return f"{shown.text} {numbered(shown.answers)}\n"


def numbered(words: list[str] | tuple[str, ...]) -> str:
    """Words with their numbers, in one line."""
    return " ".join(f"{n}. {word}" for n, word in enumerate(words, start=1))


class FrequentWords:
    """A coded text whose words have frequencies by a zeta distribution; its most frequent word is noise.

    Args:
        form: the variant.
        identity: what all that is drawn follows from.
        limit: the most tokens of the prompt and its answer.
    """

    most = None
    least = LEAST_CODED

    def __init__(self, form: Variant, identity: str, limit: int) -> None:
        self._form, self._identity = form, identity
        draw, words = generator(identity, "words"), dict[str, None]()
        while len(words) < (limit - form.new_tokens) // TOKENS_A_WORD:
            words["".join(draw.choices(string.ascii_lowercase, k=CODED_LETTERS))] = None
        self._words = ["...", *list(words)[1:]]

    def prompt(self, units: int) -> Prompt:
        """The prompt of a text that would have so many words, if frequencies were not rounded down."""
        alpha = self._form.args["alpha"]
        words = [
            word for rank, word in enumerate(self._words, start=1) for _ in range(int(units * rank**-alpha / ZETA_2))
        ]
        generator(self._identity, units).shuffle(words)
        return filled(self._form, " ".join(words), tuple(self._words[1 : RANKED + 1]))
