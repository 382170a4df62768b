"""Attention sinks and the most recent tokens: StreamingLLM (Xiao et al. 2024).

Legend: B rows, T new tokens, S keys in view, H query heads, K key/value heads, D head width.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import pydantic
import torch
from torch import Tensor

from contextlab.attention import KV, CacheReader, Layout, per_head, rotate
from contextlab.backbone import Backbone
from contextlab.errors import UserError
from contextlab.kernels.sink_attention import sink_attention
from contextlab.method import Capabilities
from contextlab.methods.parts.blocks import BLOCK_TOKENS
from contextlab.methods.parts.branches import Branches
from contextlab.methods.parts.local_cache import CacheConfig, LocalCache, LocalState, reserved
from contextlab.methods.parts.low_rank import LowRankConfig, LowRankMethod

CUT_EVERY = 256


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class SinksConfig(LowRankConfig, CacheConfig):
    """How much stays in view.

    Attributes:
        sinks: first tokens of the text that stay in view, 0 for none.
        recent: most recent tokens in view, the query's included; as many as fill 1,024 with the sinks, or the model's
            positions, when not given.
    """

    free_at_test: ClassVar[frozenset[str]] = frozenset({"cache"})

    sinks: pydantic.NonNegativeInt = 4
    recent: pydantic.PositiveInt | None = None


class Sinks(LowRankMethod[SinksConfig]):
    """Attends to the first 4 and the 1,020 most recent tokens, token by token.

    Positions are those inside the cache: once it is full, every query has its last position. So queries attend to
    recent keys at their true distance, and to the sinks at the distance that they have in a full cache. How often the
    cache is cut back changes its size, not the result.
    """

    Config = SinksConfig

    def __init__(self, backbone: Backbone, config: SinksConfig | None = None) -> None:
        super().__init__(backbone, config)
        config = self.config
        room = backbone.max_positions - config.sinks
        if room < 1:
            raise UserError(f"{config.sinks} sinks leave no room in {backbone.max_positions} positions: use fewer.")
        if (config.recent or 1) > room:
            raise UserError(
                f"{config.recent} recent tokens and {config.sinks} sinks do not fit the model: use recent={room}."
            )
        if backbone.slopes_H is not None:
            raise UserError("Attention sinks need rotary or learned positions: use sliding with an ALiBi model.")
        recent = config.recent or min(1024 - config.sinks, room)
        self.local = LocalCache(
            min(CUT_EVERY, recent), keep_first=config.sinks, keep_last=recent, band=recent, storage=config.cache
        )
        self.full = config.sinks + recent

    @property
    def capabilities(self) -> Capabilities:
        """Exact streaming of any length."""
        return Capabilities(few_bits=self.local.storage is not None)

    def room(self, state: LocalState) -> Tensor:
        """A whole block: what a query sees does not depend on where the cache is cut back.

        Queries attend to sinks at another distance than to the first tokens of their own block: as long as a row has no
        sinks in its cache, its block ends where the cache is full. A window of the model's own counts slots, so that it
        does depend on the cuts.
        """
        if self.local.storage is not None or self.backbone.own_window is not None:
            return super().room(state)
        used_B = state.kv.used_B
        return torch.where(used_B < self.local.keep_first, self.full - used_B, BLOCK_TOKENS)

    def reserve(self, state: LocalState, lengths_B: Tensor) -> LocalState:
        """Free slots for the tokens of a block, which may lie after the end of the segment."""
        left_B = torch.maximum(state.left_B, lengths_B.clamp(max=BLOCK_TOKENS))
        return state.with_caches(reserved(state.kv, lengths_B, left_B))

    def continuations(self, state: LocalState, longest: int) -> Branches[LocalState] | None:
        """Side by side where none goes beyond the end of the segment: there each cuts its own cache back."""
        return super().continuations(state, longest) if longest <= int(state.left_B.min()) else None

    def closed(self, grown: LocalState, lengths_B: Tensor) -> LocalState:
        """The state after a step, cut back as at the last of the segment ends that it has passed."""
        ended_B, segment = grown.left_B <= 0, self.local.segment
        if not bool(ended_B.any()):
            return grown
        since_B = torch.where(ended_B, -grown.left_B % segment, 0)
        kv = grown.kv.keep(self.local.keep_first, self.local.keep_last + since_B, ended_B, self.backbone)
        left_B = torch.where(ended_B, segment - since_B, grown.left_B)
        return dataclasses.replace(grown.with_caches(kv), left_B=left_B)

    def reader(self, state: LocalState, layout: Layout) -> CacheReader:
        """Attention in which the distance of the sinks is that in a full cache, once a query is beyond it."""
        plain = self.backbone.learned_positions or not self.local.keep_first
        # Earlier tokens of continuations are in slots as well, so that no position is beyond the slots.
        if plain or state.kv.slots + layout.position_BT.shape[1] <= self.full:
            return super().reader(state, layout)
        return SinkReader(self.backbone, state.kv, layout)


class SinkReader(CacheReader):
    """Causal attention in a band, with sinks whose distance stops growing when the cache is full."""

    def __init__(self, backbone: Backbone, kv: KV, layout: Layout) -> None:
        super().__init__(backbone, kv, layout)
        assert layout.band is not None
        capped_BT = layout.position_BT.clamp(max=layout.first + layout.band - 1)
        self._sink_rotary = per_head(backbone, capped_BT, kv.k[0].dtype)
        self._seen: dict[int | None, Tensor] = {}

    def __call__(
        self, layer: int, q_BHTD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, scale: float, window: int | None = None
    ) -> Tensor:
        """Append the new keys and values of a layer and attend."""
        k_BKSD, v_BKSD = self.append(k_BKTD, v_BKTD)
        q_near, q_sink = rotate(q_BHTD, self._q_rotary), rotate(q_BHTD, self._sink_rotary)
        if window not in self._seen:
            self._seen[window] = self.seen_keys(window)
        return sink_attention(q_near, q_sink, k_BKSD, v_BKSD, self._seen[window], self.layout.first, scale)
