"""The cost of a method's calls by arithmetic: from lengths and settings alone, without running anything.

It is declared by the method (`ContextMethod.formula`), stands beside every measured cost, and is compared with it in
tests. Where it has no answer it says None, never a number that may be wrong.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

FORKS = 16
"""The most copies of a state that answer side by side."""
FORK_BYTES = 2**29
"""The most bytes of copies of a state that answer, or read candidates, side by side; one copy may have more."""


def copies_at_once(size: int) -> int:
    """How many copies of a state of so many bytes may be there side by side, at least 1."""
    return max(1, FORK_BYTES // max(size, 1))


class Row(NamedTuple):
    """A row of a call: how many tokens of its text were read before, and how many the call reads."""

    before: int
    tokens: int


class Formula(ABC):
    """The arithmetic of a method for texts that were announced in one way (`Lengths`).

    FLOPs are model FLOPs as they are measured: a multiply-add counts 2. Rows of a call are padded to the longest.

    Attributes:
        least: whether a text may cost more than the formula says, because a check depends on what is in it.
    """

    least: ClassVar[bool] = False

    @abstractmethod
    def read(self, rows: Sequence[Row], *, logprobs: bool) -> int | None:
        """FLOPs of one call of `read`."""

    def score(self, before: int, candidates: Sequence[int]) -> int | None:
        """FLOPs of one call of `score` after a state of a single row.

        Args:
            before: tokens read before.
            candidates: their lengths.
        """
        together = max(len(candidates), 1)
        if together > 1:
            size = self.state_bytes(before)
            if size is None:
                return None
            together = copies_at_once(size)
        rows = [Row(before, length) for length in candidates]
        return total([self.read(rows[n : n + together], logprobs=True) for n in range(0, len(rows), together)])

    def generate(self, before: int, prompts: Sequence[int], written: Sequence[int], most: int) -> int | None:
        """FLOPs of one call of `generate` after a state of a single row.

        Args:
            before: tokens read before.
            prompts: their lengths.
            written: tokens written after each of them.
            most: `max_new_tokens` of the call.
        """
        together = max(len(prompts), 1)
        if together > 1:
            size = self.state_bytes(before)
            if size is None:
                return None
            together = min(FORKS, copies_at_once(size))
        flops = [
            self._beside_each_other(before, prompts[n : n + together], steps(written[n : n + together], most))
            for n in range(0, len(prompts), together)
        ]
        return total(flops)

    def predict(self, befores: Sequence[int]) -> int | None:
        """FLOPs of `next_logprobs` for rows that have read so many tokens; None, the default, leaves `generate` without
        a formula.
        """
        return None

    def state_bytes(self, length: int) -> int | None:
        """Bytes of a state of one row that has read so many tokens."""
        return None

    def _beside_each_other(self, before: int, prompts: Sequence[int], count: int) -> int | None:
        """Forks of the state, each with its prompt, then one token more of each in every further step."""
        flops = [self.read([Row(before, length) for length in prompts], logprobs=False)] if count else []
        for step in range(count):
            ends = [before + length + step for length in prompts]
            flops.append(self.predict(ends))
            if step + 1 < count:
                flops.append(self.read([Row(end, 1) for end in ends], logprobs=False))
        return total(flops)


def steps(written: Sequence[int], most: int) -> int:
    """How often the next token was predicted: once more than the longest answer where something ended it before."""
    return min(max(written, default=-1) + 1, most)


def total(parts: Sequence[int | None]) -> int | None:
    """The sum; None where a part is unknown."""
    counted = [part for part in parts if part is not None]
    return sum(counted) if len(counted) == len(parts) else None
