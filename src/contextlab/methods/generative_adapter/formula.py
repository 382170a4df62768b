"""GenerativeAdapter's cost by arithmetic: chunks with thin products beside some layers, S, and weights made of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from contextlab.accounting.decompositions import qr_flops, svd_flops
from contextlab.accounting.formulas import Model
from contextlab.method import Lengths
from contextlab.methods.generative_adapter.config import GenerativeAdapterConfig
from contextlab.methods.parts.formulas import WeightsFormula
from contextlab.methods.parts.targets import Target


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


class AdapterFormula(WeightsFormula):
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
        self.config, self.widths = config, widths
        # A2 H^T H B1 in all adapted layers.
        gram = len(widths.targets) * (4 * model.width * widths.d_r + 2 * widths.d_r**2)
        super().__init__(model, chunk, widths.pairs, ahead, gram)

    def state_bytes(self, length: int) -> int | None:
        """Bytes of S, the pairs, the open chunk's cache, the last hidden state, and three counts."""
        return self.bytes_of(len(self.widths.targets) * self.widths.d_r**2, length)

    def written(self, chunk: int) -> int:
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
