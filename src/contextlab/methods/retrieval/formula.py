"""Retrieval's cost by arithmetic: a sliding window, and in the upper layers chunks of everything older."""

from __future__ import annotations

from collections.abc import Sequence

from contextlab.accounting.formulas import Model
from contextlab.methods.parts.formulas import LocalFormula, Span
from contextlab.methods.parts.groups import unit_of
from contextlab.methods.parts.local_cache import LocalCache
from contextlab.methods.parts.packed_banks import bank_bytes
from contextlab.methods.retrieval.config import RetrievalConfig


class RetrievalFormula(LocalFormula):
    """Attention to the view; in the layers that retrieve a search of all chunks, and attention to the best.

    Args:
        model: sizes of the backbone.
        local: the view.
        config: the method's settings.
        layers: that have a bank.
        packs_inside: see `LocalFormula`.
    """

    def __init__(
        self, model: Model, local: LocalCache, config: RetrievalConfig, *, layers: int, packs_inside: bool = False
    ) -> None:
        super().__init__(model, local, packs_inside=packs_inside)
        self.config, self.layers = config, layers
        # Layers with a narrow window of the model's own keep a bank, and do not reach its position.
        narrow = model.window is not None and model.window < local.keep_last + local.segment
        self.retrieving = 0 if narrow else layers

    def banked(self, begin: int) -> int:
        """Tokens of the bank in front of a segment; what leaves it leaves it in whole chunks or groups."""
        unit, most = unit_of(self.config.csz, self.config.storage_dtype), self.config.M
        past = begin - self.kept(begin)
        return past if past <= most else past - -(-(past - most) // unit) * unit

    def step(self, spans: Sequence[Span], tokens: int) -> int:
        """Forward passes, and what is learned of the queries where some row has chunks."""
        flops = super().step(spans, tokens)
        if self.config.rank and any(self._chunks(span) for span in spans):
            change = 8 * self.model.heads * self.model.head_width * self.config.rank
            flops += len(spans) * self.retrieving * tokens * change
        return flops

    def network(self, span: Span, tokens: int) -> int:
        """A forward pass with what it retrieves."""
        chunks = self._chunks(span)
        retrieved = min(self.config.K // self.config.csz, chunks) * self.config.csz
        # What heads share is chosen by the sum of the queries of every key head.
        heads = self.model.kv_heads if self.config.shared else None
        memory = self.model.search(tokens, chunks, heads) + self.model.attention(tokens * retrieved)
        return super().network(span, tokens) + self.retrieving * memory

    def state_bytes(self, length: int) -> int:
        """Bytes of the view, and of the bank with its mean keys."""
        banked = self.banked(self.segments.bounds(length)[0])
        bank = bank_bytes(self.model, banked, self.config.csz, self.layers, self.config.storage_dtype)
        return super().state_bytes(length) + bank

    def _chunks(self, span: Span) -> int:
        return self.banked(span.begin) // self.config.csz
