"""EVALM's cost by arithmetic: local attention, attention to the summaries, and making them."""

from __future__ import annotations

from collections.abc import Sequence

from contextlab.accounting.formulas import COUNT, WIDE_BYTES, Model
from contextlab.methods.evalm.config import EVALMConfig, Geometry
from contextlab.methods.parts.few_bits import Vectors
from contextlab.methods.parts.formulas import LocalFormula, Span
from contextlab.methods.parts.local_cache import LocalCache


class EVALMFormula(LocalFormula):
    """One softmax over the local view and one summary per chunk, of which whole chunks leave one in every layer.

    Args:
        model: sizes of the backbone.
        local: the local view.
        first: tokens of the first window.
        config: the method's settings.
        geometry: which summaries are seen.
        update: FLOPs per token of the updates.
        vectors: how summaries are stored.
    """

    def __init__(
        self,
        model: Model,
        local: LocalCache,
        first: int,
        config: EVALMConfig,
        geometry: Geometry,
        update: int,
        vectors: Vectors,
    ) -> None:
        super().__init__(model, local, first, update)
        self.config, self.geometry, self.vectors = config, geometry, vectors

    def step(self, spans: Sequence[Span], tokens: int) -> int:
        """Forward passes, and the summaries of as many chunks as some row completes."""
        chunk = self.geometry.chunk
        done = max((span.before % chunk + span.taken) // chunk for span in spans)
        chunks = max((span.before + span.taken) // chunk for span in spans)
        remote = sum(self._remote(span.before, tokens, chunks) for span in spans)
        return super().step(spans, tokens) + remote + len(spans) * done * self.model.layers * self._summary()

    @property
    def packs_beside(self) -> bool:
        """See `EVALM.packs_beside`."""
        return False

    def beside(self, before: int, tokens: int) -> int | None:
        """A pass that makes no summaries; None for one that would see its own."""
        chunk, span = self.geometry.chunk, self._span(before, tokens)
        if self.geometry.own and before % chunk + tokens > chunk:
            return None
        return self.network(span, tokens) + self._remote(before, tokens, before // chunk)

    def state_bytes(self, length: int) -> int:
        """Bytes of the local view, of the summaries, and of the open chunk's query sums."""
        sums = self.model.layers * self.model.kv_heads * self.model.head_width * max(WIDE_BYTES, self.model.item_bytes)
        stored = 2 * self.vectors.nbytes(self.model.head_width) * self.model.kv_heads * self.model.layers
        chunks = length // self.geometry.chunk * stored + COUNT
        return super().state_bytes(length) + chunks + (sums if self.config.pooling == "eva" else 0)

    def _remote(self, before: int, tokens: int, chunks: int) -> int:
        """FLOPs of attention to summaries, of which there are `chunks` when the tokens attend."""
        if self.geometry.own:
            pairs = sum(min((before + step) // self.geometry.chunk, chunks) for step in range(tokens))
        else:
            past = self.geometry.past(before, self.used(before))
            pairs = tokens * max(min(past // self.geometry.chunk, chunks) - self.geometry.first, 0)
        return self.model.layers * self.model.attention(pairs)

    def _summary(self) -> int:
        """FLOPs of one summary in one layer: its maps, and pooling of its tokens."""
        heads, width = self.model.kv_heads, self.model.head_width
        maps, products = (3, 4) if self.config.pooling == "eva" else (2, 6)
        return heads * (maps * 2 * width * width + products * self.geometry.chunk * width)
