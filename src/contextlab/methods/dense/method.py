"""Retrieval of text by vectors: every chunk has one, and those nearest to that of the query are read.

Legend: B rows, N chunks of the longest text, E width of a vector.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Self

import pydantic
import torch
from torch import Tensor, nn

from contextlab import states
from contextlab.accounting.formulas import Model
from contextlab.backbone import Backbone, SentenceEncoder
from contextlab.formula import Formula
from contextlab.method import Lengths
from contextlab.methods.dense import vectors
from contextlab.methods.dense.formula import DenseFormula
from contextlab.methods.parts.text_retrieval import TextConfig, TextMethod, TextState

DIGITS = 6
"""Of a score: chunks that differ in less are equal, as repeated ones are, and the newest of them are taken."""


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class DenseConfig(TextConfig):
    """What is retrieved, by what, and how often.

    Attributes:
        encoder: of sentences, a folder or an id on the hub; the backbone itself, by the mean of its last hidden states,
            when not given.
    """

    encoder: str | None = None


@dataclasses.dataclass(frozen=True)
class DenseState(TextState):
    """A text and the vectors of its whole chunks.

    Attributes:
        chunks_B: chunks of every row.
        vectors_BNE: of length 1, in float32.
    """

    chunks_B: Tensor
    vectors_BNE: Tensor

    def unpadded(self) -> Self:
        """The state without places that no row uses; see `State.unpadded`."""
        cut = self.vectors_BNE[:, : int(self.chunks_B.max())]
        return dataclasses.replace(super().unpadded(), vectors_BNE=cut).own(self.owner)


class Dense(TextMethod[DenseConfig, DenseState]):
    """Keeps the text, with a vector of every chunk; the k nearest chunks are read in front of its recent tokens.

    A chunk is encoded by itself when its last token is read, so that its vector is the same however a text is divided
    into calls and whatever other rows hold.

    Attributes:
        encoder: of sentences; None where the backbone is its own.
    """

    Config = DenseConfig

    def __init__(self, backbone: Backbone, config: DenseConfig | None = None) -> None:
        super().__init__(backbone, config)
        name = self.config.encoder
        self.encoder = None if name is None else SentenceEncoder.load(name, backbone.device)
        self.vector = (
            vectors.of_backbone(backbone) if self.encoder is None else vectors.of_encoder(backbone, self.encoder)
        )

    @property
    def weights_digest(self) -> str | None:
        """sha256 of the encoder; None where the backbone is its own."""
        return None if self.encoder is None else self.encoder.digest

    def formula(self, ahead: Lengths | None = None) -> Formula | None:
        """That of full attention to what is in view, and of the vectors.

        None with an encoder of its own: how many tokens it makes of a chunk depends on the text.
        """
        model, full = Model.of(self.backbone), self.full.formula()
        if model is None or full is None or self.encoder is not None:
            return None
        return DenseFormula(model, full, self.view, ahead)

    def begin(self, empty: TextState) -> DenseState:
        """Without chunks."""
        width = self.backbone.width if self.encoder is None else self.encoder.width
        return DenseState(
            empty.length_B,
            empty.pending_BC,
            empty.tokens_BS,
            empty.first_B,
            chunks_B=torch.zeros_like(empty.length_B),
            vectors_BNE=torch.zeros(empty.batch_size, 0, width, device=empty.device),
        )

    def indexed(self, state: DenseState) -> DenseState:
        """The state with the vectors of chunks that have become whole."""
        chunk, before = self.view.chunk, state.vectors_BNE
        chunks_B = state.length_B // chunk
        if torch.equal(chunks_B, state.chunks_B):
            return state
        slots = max(before.shape[1], int(chunks_B.max()))
        vectors_BNE = torch.nn.functional.pad(before, (0, 0, 0, slots - before.shape[1])).clone()
        for row, (begin, end) in enumerate(zip(state.chunks_B.tolist(), chunks_B.tolist(), strict=True)):
            for number in range(begin, end):
                tokens = state.tokens_BS[row, number * chunk : (number + 1) * chunk].tolist()
                vectors_BNE[row, number] = self.vector(tokens)
        return dataclasses.replace(state, chunks_B=chunks_B, vectors_BNE=vectors_BNE)

    def best(self, state: DenseState, row: int, chunks: Sequence[Sequence[int]], query: Sequence[int]) -> list[int]:
        """The chunks whose vectors have the largest inner products with that of the query."""
        k, count = self.view.k, len(chunks)
        if count <= k:
            return list(range(count))
        scores_N1 = state.vectors_BNE[row, :count] @ self.vector(query)[:, None]
        scores = [round(score, DIGITS) for score in scores_N1[:, 0].tolist()]
        return sorted(sorted(range(count), key=lambda number: (-scores[number], -number))[:k])

    def check_state(self, state: DenseState) -> None:
        """Every whole chunk has a vector."""
        super().check_state(state)
        whole_B = state.length_B // self.view.chunk
        states.within("chunks_B", state.chunks_B, whole_B, whole_B)
        states.within("chunks_B", state.chunks_B, 0, state.vectors_BNE.shape[1])

    def _parameters(self) -> Iterable[nn.Parameter]:
        """Those of the encoder, none of which training changes."""
        return () if self.encoder is None else self.encoder.model.parameters()
