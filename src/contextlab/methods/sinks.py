"""Attention sinks and the most recent tokens: StreamingLLM (Xiao et al. 2024).

Legend: B rows, T new tokens, S keys in view, H query heads, K key/value heads, D head width.
"""

from __future__ import annotations

from typing import ClassVar

import pydantic
import torch
from torch import Tensor

from contextlab.attention import KV, CacheReader, Layout, per_head, rotate
from contextlab.backbone import Backbone
from contextlab.errors import UserError
from contextlab.kernels.sink_attention import sink_attention
from contextlab.method import Capabilities
from contextlab.methods.local_cache import CacheConfig, LocalCache, LocalState
from contextlab.methods.low_rank import LowRankConfig, LowRankMethod

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

    def reader(self, state: LocalState, layout: Layout) -> CacheReader:
        """Attention in which the distance of the sinks is that in a full cache, once a query is beyond it."""
        plain = self.backbone.learned_positions or not self.local.keep_first
        if plain or int(state.kv.used_B.max()) + layout.position_BT.shape[1] <= self.full:
            return super().reader(state, layout)
        return SinkReader(self.backbone, state.kv, layout)


class SinkReader(CacheReader):
    """Causal attention in a band, with sinks whose distance stops growing when the cache is full."""

    def __init__(self, backbone: Backbone, kv: KV, layout: Layout) -> None:
        super().__init__(backbone, kv, layout)
        assert layout.band is not None
        self._sink_rotary = per_head(backbone, layout.position_BT.clamp(max=layout.first + layout.band - 1))
        self._seen: dict[int | None, Tensor] = {}

    def __call__(
        self, layer: int, q_BHTD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, scale: float, window: int | None = None
    ) -> Tensor:
        """Append the new keys and values of a layer and attend."""
        k_BKSD, v_BKSD = self.append(k_BKTD, v_BKTD)
        q_near, q_sink = rotate(q_BHTD, self._q_rotary), rotate(q_BHTD, self._sink_rotary)
        if window not in self._seen:
            mask = self.mask(window, torch.float32)
            self._seen[window] = self.visible() if mask is None else mask[:, 0] == 0
        return sink_attention(q_near, q_sink, k_BKSD, v_BKSD, self._seen[window], self.layout.first, scale)
