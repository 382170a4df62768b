"""EVALM's hyper-parameters, and the positions of local tokens and summaries.

Legend: B rows, n chunks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, TypeVar

import pydantic
import torch
from torch import Tensor

from contextlab.errors import UserError
from contextlab.methods.parts.few_bits import Storage
from contextlab.methods.parts.local_cache import CacheConfig
from contextlab.methods.parts.low_rank import LowRankConfig

N = TypeVar("N", int, Tensor)


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class EVALMConfig(LowRankConfig, CacheConfig):
    """The papers' hyper-parameters, and what attaching EVA to a trained model adds.

    Weights that were trained with rank=0 are those that a larger rank begins with: its low-rank update is zero then.

    Attributes:
        W: tokens of a local window; 1,024, or as many as fit, when not given. The paper's form is W = c.
        c: tokens of a chunk, a divisor of W.
        overlap: whether the whole previous window is in view too.
        sinks: first tokens of the text that stay in view, exactly.
        remote_visibility: a query sees the summaries of all chunks `before_chunk`, its own, as in the papers (those of
            its own window are then seen twice), or of those that have left its local view, `before_window`.
        sink_summaries: whether, with `before_window`, a chunk that lies wholly in the sinks is also seen as a summary,
            and so attended to twice; a chunk that holds a sink and later tokens always is a summary.
        pooling: `eva`, values pooled by a random feature around the chunk's mean query and mean key; or `learned`,
            keys and values pooled by attention of a learned vector, without the query sum in the state.
        adaptive: maps of the means: `no-ln`, linear, which can start as the identity; or `qk`, with a layer norm.
        remote_bias: initial value of the learned bias per head on summaries; None is minus infinity, which leaves the
            local attention alone.
        storage_dtype: type of the stored summaries; `int8` or `int4` for so many bits and a range per key or value. The
            model's own when not given; with another one nothing can be learned.
    """

    # Summaries of one window are read in the next ones, and the paper trains on sequences of 8,192 tokens.
    training_defaults: ClassVar[Mapping[str, Any]] = {"segments": 2, "sequence": 8192}
    free_at_test: ClassVar[frozenset[str]] = frozenset({"W", "cache", "remote_bias", "storage_dtype"})

    W: pydantic.PositiveInt | None = None
    c: pydantic.PositiveInt = 16
    overlap: bool = False
    sinks: pydantic.NonNegativeInt = 4
    remote_visibility: Literal["before_window", "before_chunk"] = "before_window"
    sink_summaries: bool = False
    pooling: Literal["eva", "learned"] = "eva"
    adaptive: Literal["no-ln", "qk"] = "no-ln"
    remote_bias: pydantic.FiniteFloat | None = None
    storage_dtype: Storage | None = None

    def __post_init__(self) -> None:
        """Check what the fields say together."""
        if self.W is not None:
            check_chunks(self.W, self.c)

    def geometry(self, positions: int) -> Geometry:
        """Window and positions on a model with that many positions.

        Raises:
            UserError: when the local view does not fit.
        """
        room = (positions - self.sinks) // (2 if self.overlap else 1) // self.c * self.c
        window = self.W or max(min(1024 // self.c * self.c or self.c, room), 0)
        if not self.sinks <= window <= room or not window:
            raise UserError(
                f"A window of {window or self.c} tokens and {self.sinks} sinks do not fit the model's {positions} "
                f"positions{' twice' if self.overlap else ''}: use W={max(room, 0)} or less, and no more sinks than W."
            )
        recent = window if self.overlap else 0
        far = positions - self.sinks - recent - window
        own = self.remote_visibility == "before_chunk"
        first = 0 if own or self.sink_summaries else self.sinks // self.c
        return Geometry(window, self.c, self.sinks, recent, far, own, first)


def check_chunks(window: int, chunk: int) -> None:
    """Chunks must fill a window.

    Raises:
        UserError: when they do not.
    """
    if window % chunk:
        raise UserError(f"The window W={window} must be a multiple of the chunk c={chunk}.")


@dataclasses.dataclass(frozen=True)
class Geometry:
    """The order of positions: summaries, sinks, what is kept of the previous window, the window; the newest last.

    A token's position is its slot in the local cache. Summaries have the positions in front of it: -1, -2, ... from
    the newest to the oldest, none farther than the model's positions reach. So with no summary seen this is local
    attention with sinks, and no distance is one that the model was not trained on.

    Attributes:
        window: tokens of a window.
        chunk: tokens of a chunk.
        sinks: first tokens that stay.
        recent: tokens of the previous window that stay.
        far: the farthest position of a summary, counted backwards from 0.
        own: whether chunks of the local view are seen as summaries too.
        first: the first chunk that is seen as a summary; those before it lie wholly in the sinks.
    """

    window: int
    chunk: int
    sinks: int
    recent: int
    far: int
    own: bool
    first: int = 0

    def kept(self, begin: int) -> int:
        """Slots in use when a window begins after so many tokens."""
        return min(begin, self.sinks + self.recent)

    def past(self, length: N, used: N) -> N:
        """Tokens of the text that are in front of the local view, when so many are read and so many slots in use."""
        return (length - used + self.sinks) * (length > used)

    def seen(self, length_BT: Tensor, past_B: Tensor) -> Tensor:
        """`counts_BT`: summaries seen, from `first` on, by queries with so many tokens before them."""
        whole_BT = length_BT // self.chunk if self.own else (past_B // self.chunk)[:, None].expand_as(length_BT)
        return (whole_BT - self.first).clamp(min=0)

    def counts(self, position_T: Tensor) -> Tensor:
        """`counts_T`: summaries seen by the tokens at these positions of a whole text without sinks."""
        begin_T = position_T // self.window * self.window
        past_T = self.past(begin_T, begin_T.clamp(max=self.recent))
        return self.seen(position_T[:, None], past_T)[:, 0]

    def positions(self, chunks: int, past_B: Tensor, end_B: Tensor) -> Tensor:
        """`positions_Bn` of chunks from `first` on, the same throughout a window that ends after `end_B` tokens."""
        newest_B = (end_B if self.own else past_B) // self.chunk
        back_Bn = newest_B[:, None] - self.first - torch.arange(chunks, device=past_B.device)
        return -back_Bn.clamp(min=0, max=self.far)


# The form that the paper writes down, for models of its shapes (`backbone.PAPER_SHAPES`). It never says W: at its
# training length of 8,192 tokens, t/W summaries and W local tokens are nearly the least.
PAPER = EVALMConfig(W=128, c=128, sinks=0, remote_visibility="before_chunk", adaptive="qk", remote_bias=0.0)
