"""LongMem's cost by arithmetic: the backbone, the side network beside it, and the bank of what has left the view."""

from __future__ import annotations

from collections.abc import Sequence

from contextlab.accounting.formulas import Model
from contextlab.methods.longmem.config import LongMemConfig
from contextlab.methods.parts.formulas import LocalFormula, Span
from contextlab.methods.parts.groups import unit_of
from contextlab.methods.parts.local_cache import LocalCache
from contextlab.methods.parts.packed_banks import bank_bytes


class LongMemFormula(LocalFormula):
    """Local attention in both networks, and attention to what the blocks that read a bank retrieve.

    Args:
        model: sizes of the backbone.
        local: the local context.
        first: tokens of the first segment.
        config: the method's settings.
        blocks: side blocks.
        reading: of every side block that reads a bank, the backbone layer whose keys and values it holds.
        update: FLOPs per token of the side blocks' updates.
    """

    def __init__(
        self,
        model: Model,
        local: LocalCache,
        first: int,
        config: LongMemConfig,
        *,
        blocks: int,
        reading: Sequence[int],
        update: int,
    ) -> None:
        super().__init__(model, local, first, update)
        self.config, self.blocks, self.reading = config, blocks, reading

    def banked(self, position: int) -> int:
        """Tokens of the bank."""
        csz, most, bank, view = self.config.csz, self.config.M, 0, 0
        if not most:
            return 0
        unit = unit_of(csz, self.config.storage_dtype)
        end = 0
        for length in self.segments.before(position):
            end += length
            outgoing, view = view + length - self.kept(end), self.kept(end)
            whole = outgoing // csz * csz
            dropped = -(-max(bank + whole - most, 0) // unit) * unit
            if self.config.eviction == "official_two_step" and bank + whole >= most and whole > 0:
                two_steps = -(-(2 * outgoing // csz * csz) // unit) * unit
                dropped = max(dropped, min(two_steps, bank // unit * unit))
            bank += whole - dropped
        return bank

    def step(self, spans: Sequence[Span], tokens: int) -> int:
        """Both networks; with a memory, local attention twice where a block must tell what memory changes."""
        flops = super().step(spans, tokens)
        twice = self.config.softmax == "joint" and self.config.init == "memory"
        if twice and any(self.banked(span.begin) >= self.config.csz for span in spans):
            again = sum(self.pairs(span, tokens) for span in spans)
            flops += len(self.reading) * self.model.attention(again)
        return flops

    def network(self, span: Span, tokens: int) -> int:
        """Both networks, and the memory."""
        pairs = self.pairs(span, tokens)
        side = self.blocks * self.model.block(tokens, pairs) + tokens * self.update
        flops = self.model.blocks(tokens, pairs) + side
        chunks = self.banked(span.begin) // self.config.csz
        if chunks:
            flops += len(self.reading) * (self.model.search(tokens, chunks) + self._attended(tokens, chunks))
        return flops

    def skim(self, spans: Sequence[Span]) -> int | None:
        """The backbone up to the highest layer that a bank holds; a sliding view needs all of it."""
        if not self.local.forgets:
            return None
        return self.up_to(max(self.reading) + 1, spans)

    def state_bytes(self, length: int) -> int:
        """Bytes of the local context in both networks, and of the bank with its mean keys."""
        side = self.view_bytes(self.used(length), self.blocks)
        banked = self.banked(self.segments.bounds(length)[0])
        bank = bank_bytes(self.model, banked, self.config.csz, len(set(self.reading)), self.config.storage_dtype)
        return super().state_bytes(length) + side + bank

    def _attended(self, tokens: int, chunks: int) -> int:
        """FLOPs of one block's attention to what it retrieves."""
        most = self.config.K // self.config.csz
        retrieved = most if self.config.short_bank == "zero_slot" else min(most, chunks)
        return self.model.attention(tokens * retrieved * self.config.csz)
