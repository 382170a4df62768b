"""GenerativeAdapter's cost by arithmetic: chunks with thin products beside some layers, S, and weights made of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from contextlab.accounting.formulas import COUNT, Model
from contextlab.method import Lengths
from contextlab.methods.formulas import BlockFormula, Segments, Span
from contextlab.methods.generative_adapter.config import GenerativeAdapterConfig
from contextlab.methods.generative_adapter.normalise import qr_flops, svd_flops
from contextlab.methods.targets import Target

WIDE = 4
"""Bytes of a number of S and of the pairs, at least."""


@dataclasses.dataclass(frozen=True)
class Widths:
    """Sizes of a generator: of S, of the pairs, and of the adapted layers."""

    d_r: int
    rank: int
    targets: Sequence[Target]

    @property
    def pairs(self) -> int:
        """Numbers of all pairs."""
        return self.rank * sum(target.inputs + target.outputs for target in self.targets)


class AdapterFormula(BlockFormula):
    """Forward passes with the pairs; where a chunk is learned from, two products of every state in front of S.

    Args:
        model: sizes of the backbone.
        chunk: the most tokens of a chunk.
        config: the method's settings.
        widths: of the generator.
        ahead: of the text's start.
    """

    def __init__(
        self, model: Model, chunk: int, config: GenerativeAdapterConfig, widths: Widths, ahead: Lengths | None
    ) -> None:
        self.context = ahead.context if ahead else 0
        count = -(-self.context // chunk)
        super().__init__(model, Segments(self.context, -(-self.context // max(count, 1)), chunk))
        self.config, self.widths = config, widths

    def step(self, spans: Sequence[Span], tokens: int) -> int:
        """Forward passes that add to S; at a chunk's end the weights, and at the context's what follows BOS."""
        passes = sum(self._network(span.before - span.begin, tokens) for span in spans)
        flops = passes + len(spans) * tokens * self._gram()
        ended = [span for span in spans if span.ended]
        if any(span.end == self.context for span in ended):
            flops += len(spans) * self._network(0, 1)
        return flops + len(ended) * self._generated()

    def beside(self, before: int, tokens: int) -> int | None:
        """A forward pass that nothing is learned from."""
        return self._network(before - self.segments.bounds(before)[0], tokens)

    def generate(self, before: int, prompts: Sequence[int], written: Sequence[int], most: int) -> int | None:
        """As common passes also for one prompt: what is written is not learned from where it fits after the state."""
        if not prompts or max(prompts) + most > self._room(before):
            return super().generate(before, prompts, written, most)
        return self._in_common(before, prompts, written, most)

    def state_bytes(self, length: int) -> int | None:
        """Bytes of S, the pairs, the open chunk's cache, the last hidden state, and three counts."""
        wide, layers = max(WIDE, self.model.item_bytes), len(self.widths.targets)
        numbers = layers * self.widths.d_r**2 + self.widths.pairs
        cache = self.model.cache_bytes(length - self.segments.bounds(length)[0])
        return numbers * wide + cache + self.model.hidden_bytes + 3 * COUNT

    def _network(self, used: int, tokens: int) -> int:
        return self.model.blocks(tokens, self.model.pairs(used, tokens)) + 2 * tokens * self.widths.pairs

    def _gram(self) -> int:
        """FLOPs per token of A2 H^T H B1 in all adapted layers."""
        d_r = self.widths.d_r
        return len(self.widths.targets) * (4 * self.model.width * d_r + 2 * d_r * d_r)

    def _generated(self) -> int:
        """FLOPs of the pairs of all adapted layers, made of S."""
        d_r, rank = self.widths.d_r, self.widths.rank
        right = self.config.normalisation.startswith("svd")
        ends = sum(target.outputs + (target.inputs if right else 0) for target in self.widths.targets)
        return len(self.widths.targets) * self._normalised() + 2 * d_r * rank * ends

    def _normalised(self) -> int:
        """FLOPs of norm(S) of one layer."""
        size, rank = self.widths.d_r, self.widths.rank
        if self.config.normalisation == "svd":
            return svd_flops((size, size))
        if self.config.normalisation == "polar":
            return self.config.steps * 4 * size**3
        if self.config.normalisation != "svd-lowrank":
            return 0
        directions = min(rank + self.config.oversampling, size)
        looks = 1 + 2 * self.config.niter
        product = 2 * size * size * directions
        small = svd_flops((directions, size)) + 2 * size * directions * rank
        return looks * (product + qr_flops((size, directions))) + product + small
