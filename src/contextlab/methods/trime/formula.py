"""TRIME's cost by arithmetic: the window, and inner products with every pair of memory."""

from __future__ import annotations

from collections.abc import Sequence

from contextlab.accounting.formulas import COUNT, Model
from contextlab.backbone.wrapper import HEAD_TOKENS
from contextlab.methods.parts.formulas import LocalFormula, Span
from contextlab.methods.parts.local_cache import LocalCache


class TRIMEFormula(LocalFormula):
    """Forward passes within the segment; predictions look at all pairs before them, some tokens at a time.

    Args:
        model: sizes of the backbone.
        local: the segment.
        first: tokens of the first segment.
        most: pairs of long memory.
        update: FLOPs per token of the updates.
    """

    def __init__(self, model: Model, local: LocalCache, first: int, *, most: int, update: int) -> None:
        super().__init__(model, local, first, update)
        self.most = most

    def remembered(self, befores: Sequence[int]) -> int:
        """Pairs of long and of local memory, those of the row with most."""
        begins = [self.segments.bounds(before)[0] for before in befores]
        local = (before - begin for before, begin in zip(befores, begins, strict=True))
        return min(max(begins), self.most) + max(local)

    def head(self, spans: Sequence[Span], tokens: int) -> int:
        """The projection, and a look at memory and at the block's own pairs; masked ones among them count."""
        at_once = max(1, HEAD_TOKENS // len(spans))
        ends = [min(begin + at_once, tokens) for begin in range(0, tokens, at_once)]
        own = sum((end - begin) * end for begin, end in zip([0, *ends], ends, strict=False))
        looks = tokens * self.remembered([span.before for span in spans]) + own
        return super().head(spans, tokens) + len(spans) * 2 * self.model.width * looks

    def beside(self, before: int, tokens: int) -> int | None:
        """Every continuation has a copy of the state."""
        return None

    def predict(self, befores: Sequence[int]) -> int | None:
        """The projection and a look at memory for every row."""
        return len(befores) * (self.model.head(1) + 2 * self.model.width * self.remembered(befores))

    def state_bytes(self, length: int) -> int:
        """Bytes of the cache, of the pairs with their tokens, and of the representation that waits for its token."""
        pairs = self.remembered([length]) * (self.model.hidden_bytes + COUNT)
        return super().state_bytes(length) + self.model.hidden_bytes + pairs + 2 * COUNT
