"""Variables that are assigned one after the other, among lines of noise (upstream's `variable_tracking.py`)."""

from __future__ import annotations

import itertools
import random
import string
from collections.abc import Callable

from contextlab.benchmarks.data.ruler.sizing import most_units
from contextlab.benchmarks.data.ruler.variants import Prompt, Variant, content, filled
from contextlab.benchmarks.data.ruler.words import generator

LETTERS, LETTERS_OF_EXAMPLE = 5, 3
EXAMPLE_TOKENS = 500
"""The most tokens of the worked example."""


class Variables:
    """A sample with one chain of assignments.

    Args:
        form: the variant.
        identity: what all that is drawn follows from.
        letters: of a variable's name.
        before: text before the prompt.
    """

    most = None

    def __init__(self, form: Variant, identity: str, letters: int = LETTERS, before: str = "") -> None:
        self._form, self._identity, self._before = form, identity, before
        draw = generator(identity, "chain")
        names: dict[str, None] = {}
        while len(names) <= form.args["num_hops"]:
            names["".join(draw.choices(string.ascii_uppercase, k=letters))] = None
        self._names, self._value = tuple(names), str(draw.randint(10_000, 99_998))
        assignments = (f"VAR {name} = VAR {earlier} " for earlier, name in itertools.pairwise(names))
        self._chain = [f"VAR {self._names[0]} = {self._value}", *assignments]
        self.least = len(self._chain)

    def prompt(self, units: int) -> Prompt:
        """The prompt with so many lines of noise."""
        places = self._places(units, generator(self._identity, units))
        lines = [content()["noise_sentence"]] * units
        for place, line in zip(reversed(places), reversed(self._chain), strict=True):
            lines.insert(place, line)
        written = filled(self._form, "\n".join(lines), self._names, query=self._value, num_v=len(self._names))
        return written._replace(context=self._before + written.context)

    def _places(self, units: int, draw: random.Random) -> list[int]:
        """The places of the chain's lines, in the order of the chain."""
        return sorted(draw.sample(range(units), len(self._chain)))


def example(form: Variant, identity: str, count: Callable[[str], int]) -> str:
    """A worked example, which stands before the prompt; empty where even the shortest one is too long."""
    sample = Variables(form, f"{identity}/example", LETTERS_OF_EXAMPLE)
    lines = most_units(lambda units: count(sample.prompt(units).text), EXAMPLE_TOKENS, sample.least)
    if lines is None:
        return ""
    shown = sample.prompt(lines)
    return f"{shown.text} {' '.join(shown.answers)}\n\n"
