"""Methods that keep what attention has looked at: the score of a token is the attention that later queries pay to it.

H2O (Zhang et al. 2023) and SnapKV (Li et al. 2024) are of this form, with other queries that vote.

Legend: B rows, T new tokens, S tokens in view, H query heads, K key/value heads, D head width.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from contextlab.attention import KV, CacheReader, Layout, after, rotate
from contextlab.backbone import Backbone
from contextlab.method import C, Lengths
from contextlab.methods.local_cache import Appended, LocalState
from contextlab.methods.segments import SegmentMethod


@dataclasses.dataclass(frozen=True)
class ScoredState(LocalState):
    """A local cache with scores of its tokens.

    Attributes:
        scored: per layer `score_BKS1` in the place of keys, float32; no values.
    """

    scored: KV

    @property
    def score_BKS(self) -> tuple[Tensor, ...]:
        """Per layer and key head, the attention that every token in view has received."""
        return tuple(score_BKS1[..., 0] for score_BKS1 in self.scored.k)

    @property
    def caches(self) -> tuple[KV, ...]:
        """Keys and values, and the scores of the same slots."""
        return self.kv, self.scored

    def with_caches(self, *caches: KV) -> Self:
        """The state with other caches, in the order of `caches`."""
        kv, scored = caches
        return dataclasses.replace(self, kv=kv, scored=scored)


class ScoredMethod(SegmentMethod[C, ScoredState]):
    """A method whose cache keeps tokens by the attention that they have received: `state.score_BKS`."""

    accumulates: bool = True
    """Whether tokens that stay keep their scores at a segment's end; without, every segment votes anew."""

    def votes(self, left_BT: Tensor) -> Tensor:
        """`vote_BT`: how much the attention of every query counts; 1 for all where a method does not say.

        Args:
            left_BT: tokens of the segment that follow each query.
        """
        return torch.ones_like(left_BT, dtype=torch.float32)

    def begin(self, empty: LocalState, ahead: Lengths | None) -> ScoredState:
        """Without scores."""
        layers = range(len(empty.kv.k))
        scored = KV(tuple(k_BKSD[..., :1].float() for k_BKSD in empty.kv.k), (), empty.kv.used_B, frozenset(layers))
        return ScoredState(empty.length_B, empty.pending_BC, empty.kv, empty.left_B, scored)

    def forward(self, state: ScoredState, tokens_BT: Tensor, layout: Layout) -> tuple[Tensor, Sequence[Appended]]:
        """`hidden_BTC` of tokens that follow a state, and what has been appended to its cache and to its scores."""
        left_BT = after(state.left_B - 1, -torch.arange(tokens_BT.shape[1], device=tokens_BT.device))
        reader = ScoringReader(self.backbone, state, layout)
        return self.local.hidden(self.network, state, tokens_BT, reader), (reader, Scores(reader, self.votes(left_BT)))

    def close(self, state: ScoredState, ended_B: Tensor) -> ScoredState:
        """The most important slots stay, with or without their scores."""
        state = super().close(state, ended_B)
        if self.accumulates:
            return state
        scores = (x.masked_fill(ended_B.to(x.device)[:, None, None, None], 0.0) for x in state.scored.k)
        return dataclasses.replace(state, scored=state.scored.replace(tuple(scores), (), state.scored.used_B))


class ScoringReader(CacheReader):
    """Causal attention over a cache that remembers the queries of every layer."""

    def __init__(self, backbone: Backbone, state: ScoredState, layout: Layout) -> None:
        super().__init__(backbone, state.kv, layout)
        self.scored = state.scored
        self.seen: list[tuple[Tensor, float, int | None]] = []

    def __call__(
        self, layer: int, q_BHTD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, scale: float, window: int | None = None
    ) -> Tensor:
        """Append the new keys and values of a layer and attend."""
        self.seen.append((rotate(q_BHTD, self._q_rotary).detach(), scale, window))
        return super().__call__(layer, q_BHTD, k_BKTD, v_BKTD, scale, window)

    def received(self, layer: int, vote_BT: Tensor) -> Tensor:
        """`received_BKS1`: the attention that the cache's and the new tokens get of the queries of a layer, by vote."""
        q_BHTD, scale, window = self.seen[layer]
        k_BKSD = self.k[layer].detach().float()
        groups = q_BHTD.shape[1] // k_BKSD.shape[1]
        scores_BHTS = scale * (q_BHTD.float() @ k_BKSD.repeat_interleave(groups, dim=1).mT)
        weights_BHTS = (scores_BHTS + self.mask(window, torch.float32)).softmax(-1) * vote_BT[:, None, :, None]
        received_BKS: Tensor = weights_BHTS.sum(2).unflatten(1, (-1, groups)).sum(2)
        return received_BKS[..., None]


class Scores:
    """The scores of a state after the pass of a reader, in the place of a separate reader.

    Args:
        reader: of the pass.
        vote_BT: how much every query counts.
    """

    def __init__(self, reader: ScoringReader, vote_BT: Tensor) -> None:
        self.reader, self.vote_BT = reader, vote_BT

    def grown(self, lengths_B: Tensor) -> KV:
        """Scores with what each row's first `lengths_B` queries add; see `CacheReader.grown`."""
        old, slots = self.reader.scored, self.reader.scored.slots
        real_BT = torch.arange(self.vote_BT.shape[1]) < lengths_B[:, None]
        vote_BT = self.vote_BT * real_BT.to(self.vote_BT.device)
        received = [self.reader.received(layer, vote_BT) for layer in range(len(old.k))]
        added = tuple(x + y[:, :, :slots] for x, y in zip(old.k, received, strict=True))
        new = KV(tuple(y[:, :, slots:] for y in received), (), lengths_B)
        return old.replace(added, (), old.used_B).joined(new)

    def side_by_side(self) -> KV:
        """The scores with none for the tokens of the candidates, which end with them."""
        old, new = self.reader.scored, self.vote_BT.shape[1]
        zeros = tuple(x.new_zeros(*x.shape[:2], new, 1) for x in old.k)
        return old.joined(KV(zeros, (), old.used_B * 0 + new))
