"""What the formula of a method says of a text, without running anything."""

from __future__ import annotations

import dataclasses
import functools

from contextlab.formula import Formula, Row, total
from contextlab.methods.parts.blocks import BLOCK_TOKENS
from contextlab.planning.dry_run import AHEAD


@dataclasses.dataclass(frozen=True)
class Arithmetic:
    """What a method's formula says of a text.

    Attributes:
        formula: of the method, for this length.
        length: tokens.
        rows: texts side by side.
    """

    formula: Formula
    length: int
    rows: int

    @functools.cached_property
    def states(self) -> list[int] | None:
        """Bytes of the state before the end of every 1,024 tokens; None where that is unknown."""
        ends = [*range(BLOCK_TOKENS, self.length, BLOCK_TOKENS), self.length]
        sizes = [self.formula.state_bytes(max(end - AHEAD, 0)) for end in ends]
        totals = [self.rows * size for size in sizes if size is not None]
        return totals if len(totals) == len(sizes) else None

    @property
    def state(self) -> int | None:
        """Bytes of the largest of them."""
        return None if self.states is None else max(self.states)

    @property
    def read_flops(self) -> int | None:
        """FLOPs of reading the text without scoring it."""
        return self.formula.read([Row(0, self.length)] * self.rows, logprobs=False)

    @property
    def decoded_flops(self) -> int | None:
        """FLOPs of one token of every text at its end."""
        before = max(self.length - AHEAD, 0)
        read = self.formula.read([Row(before, 1)] * self.rows, logprobs=False)
        return total([read, self.formula.predict([before + 1] * self.rows)])
