"""Memorizing Transformer's cost by arithmetic: local attention, and in one layer a look at a bank of tokens."""

from __future__ import annotations

from collections.abc import Sequence

from contextlab.accounting.formulas import Model
from contextlab.methods.memtrm.config import MemTRMConfig
from contextlab.methods.parts.formulas import LocalFormula, Span
from contextlab.methods.parts.local_cache import LocalCache


class MemTRMFormula(LocalFormula):
    """Local attention of all layers, inner products with the whole bank, and attention to K tokens of it.

    Args:
        model: sizes of the backbone.
        local: the local context.
        first: tokens of the first segment.
        config: the method's settings.
        layer: the memory layer.
        update: FLOPs per token of the updates.
        layered: whether the backbone can be run up to the memory layer alone.
        stored_bytes: of a number in the bank.
    """

    def __init__(
        self,
        model: Model,
        local: LocalCache,
        first: int,
        config: MemTRMConfig,
        *,
        layer: int,
        update: int,
        layered: bool,
        stored_bytes: int,
    ) -> None:
        super().__init__(model, local, first, update)
        self.config, self.layer, self.layered, self.stored_bytes = config, layer, layered, stored_bytes

    def banked(self, begin: int) -> int:
        """Tokens of the bank in front of a segment: all segments before."""
        return min(begin, self.config.M)

    def network(self, span: Span, tokens: int) -> int:
        """A forward pass, with the look at the bank in one of its layers."""
        bank = self.banked(span.begin)
        attended = self.model.attention(tokens * min(self.config.K, bank))
        return super().network(span, tokens) + self.model.search(tokens, bank) + attended

    def skim(self, spans: Sequence[Span]) -> int | None:
        """Segments that start cold and are not scored, up to the memory layer, without its look."""
        if not (self.local.forgets and self.layered):
            return None
        return self.up_to(self.layer + 1, spans)

    def state_bytes(self, length: int) -> int:
        """Bytes of the local context and of the bank."""
        begin, _ = self.segments.bounds(length)
        return super().state_bytes(length) + self.model.cache_bytes(self.banked(begin), 1, self.stored_bytes)
