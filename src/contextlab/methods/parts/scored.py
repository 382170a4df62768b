"""Methods that keep what attention has looked at: the score of a token is the attention that later queries pay to it.

H2O (Zhang et al. 2023) and SnapKV (Li et al. 2024) are of this form, with other queries that vote.

Legend: B rows, T new tokens, t those of them whose queries vote, S tokens in view, H query heads, K key/value heads,
G query heads of a key/value head, D head width.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Self

import pydantic
import torch
from torch import Tensor

from contextlab.accounting.formulas import COUNT, WIDE_BYTES, Model
from contextlab.attention import KV, CacheReader, Layout, rotate
from contextlab.backbone import Backbone
from contextlab.errors import UserError
from contextlab.formula import Formula
from contextlab.kernels.buffers import wide
from contextlab.method import C, Lengths
from contextlab.methods.parts.formulas import LocalFormula, Span
from contextlab.methods.parts.local_cache import Appended, CacheConfig, LocalCache, LocalConfig, LocalState
from contextlab.methods.parts.segments import SegmentMethod


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class KeepConfig(LocalConfig, CacheConfig):
    """How much stays in view.

    Attributes:
        N: tokens of a segment, at whose end tokens are dropped.
        keep: tokens that stay in view at the end of a segment, in every head; a whole segment when not given.
    """

    keep: pydantic.PositiveInt | None = None

    def local(self, backbone: Backbone) -> LocalCache:
        """The cache of these settings.

        Raises:
            UserError: when it does not fit the backbone.
        """
        # What has stayed and a segment are in view at once, and share the model's positions.
        room = backbone.max_positions - (self.keep or 0)
        if room < 2:
            raise UserError(f"keep={self.keep} leaves no segment in {backbone.max_positions} positions: keep fewer.")
        segment = self.length(room if self.keep else room // 2)
        return LocalCache(segment, keep_last=self.keep or segment, storage=self.cache)


@dataclasses.dataclass(frozen=True)
class ScoredState(LocalState):
    """A local cache with scores of its tokens.

    Attributes:
        scored: per layer `score_BKS1` in the place of keys, in float32 at least; no values.
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

    def newest_B1S(self, count: int) -> Tensor:
        """Which slots hold the newest tokens of every row, so many of them; padding is among them."""
        age_BS = self.kv.used_B[:, None] - torch.arange(self.kv.slots)
        return (age_BS <= count)[:, None].to(self.device)


class ScoredMethod(SegmentMethod[C, ScoredState]):
    """A method whose cache keeps tokens by the attention that they have received: `state.score_BKS`.

    Where the length of the context is known, a segment ends with it.

    Attributes:
        voters: the last queries of a segment, whose attention counts; None for all queries.
        accumulates: whether tokens that stay keep their scores at a segment's end; without, every segment votes again.
    """

    voters: int | None = None
    accumulates: bool = True

    def formula(self, ahead: Lengths | None = None) -> Formula | None:
        """Forward passes over what the cache holds, and the scores."""
        model = Model.of(self.backbone)
        if model is None:
            return None
        return ScoredFormula(model, self.local, self.first_segment(ahead), self.voters)

    def placed_for(self, ahead: Lengths | None) -> Lengths | None:
        """The context alone: what follows it is read from what has stayed."""
        return ahead and Lengths(ahead.context)

    def begin(self, empty: LocalState, ahead: Lengths | None) -> ScoredState:
        """Without scores."""
        kind = wide(empty.kv.k[0])
        none = tuple(k_BKSD[..., :1].to(kind) for k_BKSD in empty.kv.k)
        scored = KV(none, (), empty.kv.used_B, frozenset(range(len(none))))
        return ScoredState(empty.length_B, empty.pending_BC, empty.kv, empty.left_B, scored)

    def forward(self, state: ScoredState, tokens_BT: Tensor, layout: Layout) -> tuple[Tensor, Sequence[Appended]]:
        """`hidden_BTC` of tokens that follow a state, and what has been appended to its cache and to its scores."""
        reader = ScoringReader(self.backbone, state.kv, layout)
        # A packed cache is opened without the slots that no row uses.
        scored = state.scored if state.scored.slots == state.kv.slots else state.scored.unpadded()
        first_B = torch.zeros_like(state.left_B) if self.voters is None else (state.left_B - self.voters).clamp(min=0)
        return self.local.hidden(self.network, state, tokens_BT, reader), (reader, Scores(reader, scored, first_B))

    def close(self, state: ScoredState, ended_B: Tensor) -> ScoredState:
        """The most important slots stay, with or without their scores."""
        state = super().close(state, ended_B)
        if self.accumulates:
            return state
        ended_B111 = ended_B.to(state.device)[:, None, None, None]
        scores = (score_BKS1.masked_fill(ended_B111, 0.0) for score_BKS1 in state.scored.k)
        return dataclasses.replace(state, scored=state.scored.replace(tuple(scores), (), state.scored.used_B))


class ScoringReader(CacheReader):
    """Causal attention over a cache that remembers the queries of every layer."""

    def __init__(self, backbone: Backbone, kv: KV, layout: Layout) -> None:
        super().__init__(backbone, kv, layout)
        self.seen: list[tuple[Tensor, float, int | None]] = []

    def __call__(
        self, layer: int, q_BHTD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, scale: float, window: int | None = None
    ) -> Tensor:
        """Append the new keys and values of a layer and attend."""
        self.seen.append((rotate(q_BHTD, self._q_rotary).detach(), scale, window))
        return super().__call__(layer, q_BHTD, k_BKTD, v_BKTD, scale, window)

    def received(self, layer: int, queries: slice, voting_Bt: Tensor | None) -> Tensor:
        """`received_BKS1`: the attention that the cache's and the new tokens get of queries of a layer.

        Args:
            layer: its number.
            queries: of the new tokens.
            voting_Bt: which of these queries count (bool); all when None.
        """
        q_BHTD, scale, window = self.seen[layer]
        kind = wide(q_BHTD)
        k_BKSD = self.k[layer].detach().to(kind)
        q_BKGtD = scale * q_BHTD[:, :, queries].to(kind).unflatten(1, (k_BKSD.shape[1], -1))
        grouped = q_BKGtD.shape[2:4]
        scores_BKGtS = (q_BKGtD.flatten(2, 3) @ k_BKSD.mT).unflatten(2, grouped)
        mask_BHtS = self.mask(window, kind)[:, :, queries]
        weights_BHtS = (scores_BKGtS.flatten(1, 2) + mask_BHtS).softmax(-1)
        if voting_Bt is not None:
            weights_BHtS = weights_BHtS.masked_fill(~voting_Bt[:, None, :, None], 0.0)
        received_BKS: Tensor = weights_BHtS.unflatten(1, (-1, grouped[0])).sum((2, 3))
        return received_BKS[..., None]


class Scores:
    """The scores of a state after the pass of a reader, in the place of a separate reader.

    Args:
        reader: of the pass.
        scored: before it; see `ScoredState`.
        first_B: the first query of every row that votes, counted from the first of the pass, on the host.
    """

    def __init__(self, reader: ScoringReader, scored: KV, first_B: Tensor) -> None:
        self.reader, self.scored, self.first_B = reader, scored, first_B
        self.new = reader.layout.position_BT.shape[1]

    def grown(self, lengths_B: Tensor) -> KV:
        """Scores with what the votes of each row's first `lengths_B` queries add; see `CacheReader.grown`."""
        voting_B = self.first_B < lengths_B
        if not bool(voting_B.any()):
            return self.scored.joined(self._zeros(lengths_B))
        queries = slice(int(self.first_B[voting_B].min()), int(lengths_B[voting_B].max()))
        step_t = torch.arange(queries.start, queries.stop)
        voting_Bt = (step_t >= self.first_B[:, None]) & (step_t < lengths_B[:, None])
        some_Bt = None if bool(voting_Bt.all()) else voting_Bt.to(self.scored.k[0].device)
        old, slots = self.scored, self.scored.slots
        received = [self.reader.received(layer, queries, some_Bt) for layer in range(len(old.k))]
        added = tuple(x + y[:, :, :slots] for x, y in zip(old.k, received, strict=True))
        new = KV(tuple(y[:, :, slots:] for y in received), (), lengths_B)
        return old.replace(added, (), old.used_B).joined(new)

    def side_by_side(self) -> KV:
        """The scores with none for the tokens of the candidates, which end with them."""
        return self.scored.joined(self._zeros(torch.full_like(self.scored.used_B, self.new)))

    def _zeros(self, lengths_B: Tensor) -> KV:
        return KV(tuple(x.new_zeros(*x.shape[:2], self.new, 1) for x in self.scored.k), (), lengths_B)


class ScoredFormula(LocalFormula):
    """A local cache, and in every layer the products of the queries that vote with all keys, once more.

    Args:
        model: sizes of the backbone.
        local: how long segments are, and what stays of them.
        first: tokens of the first segment.
        voters: see `ScoredMethod`.
    """

    def __init__(self, model: Model, local: LocalCache, first: int, voters: int | None) -> None:
        super().__init__(model, local, first)
        self.voters = voters

    def step(self, spans: Sequence[Span], tokens: int) -> int:
        """FLOPs of the forward pass and of the scores."""
        flops = super().step(spans, tokens)
        firsts = (0 if self.voters is None else max(0, span.end - span.before - self.voters) for span in spans)
        voting = [(first, span.taken) for first, span in zip(firsts, spans, strict=True) if first < span.taken]
        if not voting:
            return flops
        queries = max(end for _, end in voting) - min(first for first, _ in voting)
        keys = max(self.used(span.before) for span in spans) + tokens
        return flops + len(spans) * self.model.layers * self.model.search(queries, keys)

    def beside(self, before: int, tokens: int) -> int | None:
        """A forward pass alone: the tokens of candidates end with them, and have no scores."""
        return self.network(self._span(before, tokens), tokens)

    def state_bytes(self, length: int) -> int:
        """Bytes of the local cache and of a score for every key in it."""
        scores = self.model.layers * self.model.kv_heads * self.used(length)
        return super().state_bytes(length) + scores * max(WIDE_BYTES, self.model.item_bytes) + COUNT
