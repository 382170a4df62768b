"""SelfExtend (Jin et al. 2024): true positions for near keys, positions in groups for the others; nothing is trained.

Legend: B rows, T new tokens, S keys in view, H query heads, K key/value heads, D head width.
"""

from __future__ import annotations

import pydantic
import torch
from torch import Tensor

from contextlab.attention import KV, CacheReader, Layout, per_head, rotate
from contextlab.backbone import Backbone, check_rotary
from contextlab.errors import UserError
from contextlab.kernels.sink_attention import sink_attention
from contextlab.method import Capabilities, Lengths
from contextlab.methods.parts.local_cache import CacheConfig, LocalCache, LocalState
from contextlab.methods.parts.low_rank import LowRankConfig, LowRankMethod


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class SelfExtendConfig(CacheConfig, LowRankConfig):
    """Where true positions end, and how coarse the others are.

    Attributes:
        G: tokens of a group, which have one position.
        W: nearest tokens with true positions, the query's included; 1,024 or half of the model's positions when not
            given.
    """

    G: pydantic.PositiveInt = 8
    W: pydantic.PositiveInt | None = None


class SelfExtend(LowRankMethod[SelfExtendConfig]):
    """Attends to all of a context of up to about (L - W) G + W tokens with the L positions that the model has.

    The W nearest keys are at their true distance. A key j that is further from a query i is at the distance
    floor(i / G) - floor(j / G) + W - floor(W / G), so that the two meet at W.
    """

    Config = SelfExtendConfig

    def __init__(self, backbone: Backbone, config: SelfExtendConfig | None = None) -> None:
        super().__init__(backbone, config)
        check_rotary(backbone, "selfextend")
        positions, group = backbone.max_positions, self.config.G
        self.near = self.config.W or min(1024, positions // 2)
        if self.near > positions:
            raise UserError(f"W={self.near} is more than the model's {positions} positions: use W={positions // 2}.")
        self.shift = self.near - self.near // group
        self.local = LocalCache(max(positions, group * (positions - self.shift)), storage=self.config.cache)

    @property
    def capabilities(self) -> Capabilities:
        """Exact streaming as far as positions reach."""
        return Capabilities(max_context=self.local.segment, few_bits=self.local.storage is not None)

    def begin(self, empty: LocalState, ahead: Lengths | None) -> LocalState:
        """Keys without RoPE: one key has two positions."""
        return empty.with_caches(empty.kv.with_raw(frozenset(range(self.backbone.layers))))

    def reader(self, state: LocalState, layout: Layout) -> CacheReader:
        """Plain attention as long as all keys are near."""
        if state.kv.slots + layout.position_BT.shape[1] <= self.near:
            return super().reader(state, layout)
        return GroupedReader(self.network, state.kv, layout, self.near, self.config.G)


class GroupedReader(CacheReader):
    """Causal attention in one softmax to near keys at their positions, and to all others at those of their groups.

    Args:
        backbone: whose positions these are.
        kv: cache, whose keys have no RoPE.
        layout: of the new tokens.
        near: tokens with true positions, the query's included.
        group: tokens of a group.
    """

    def __init__(self, backbone: Backbone, kv: KV, layout: Layout, near: int, group: int) -> None:
        super().__init__(backbone, kv, layout)
        self.near = near
        dtype, shift = kv.k[0].dtype, near - near // group
        self._q_grouped = per_head(backbone, layout.position_BT // group + shift, dtype)
        # A slot is at least as far from another as their positions are: slots that can be far, and can be near.
        self._far = slice(0, kv.slots + layout.position_BT.shape[1] - near)
        self._close = slice(max(0, int(kv.used_B.min()) - near + 1), None)
        self._far_rotary = per_head(backbone, self.key_position_BS[:, self._far] // group, dtype)
        self._close_rotary = per_head(backbone, self.key_position_BS[:, self._close], dtype)
        self._seen: dict[int | None, Tensor] = {}

    def __call__(
        self, layer: int, q_BHTD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, scale: float, window: int | None = None
    ) -> Tensor:
        """Append the new keys and values of a layer and attend."""
        k_BKSD, v_BKSD = self._growth.append(k_BKTD, v_BKTD)
        far, close = self._far, self._close
        k_far, k_close = rotate(k_BKSD[:, :, far], self._far_rotary), rotate(k_BKSD[:, :, close], self._close_rotary)
        k_twice = torch.cat((k_far, k_close), dim=2)
        v_twice = torch.cat((v_BKSD[:, :, far], v_BKSD[:, :, close]), dim=2)
        q_near, q_far = rotate(q_BHTD, self._q_rotary), rotate(q_BHTD, self._q_grouped)
        if window not in self._seen:
            self._seen[window] = self._seen_twice(window)
        return sink_attention(q_near, q_far, k_twice, v_twice, self._seen[window], far.stop, scale)

    def _seen_twice(self, window: int | None) -> Tensor:
        """Which keys each new token sees at the positions of groups, then those that it sees at true ones."""
        seen_BTS = self.seen_keys(window)
        distance_BTS = self.layout.position_BT[:, :, None] - self.key_position_BS[:, None, :]
        near_BTS = distance_BTS < self.near
        far_BTS, close_BTS = seen_BTS & ~near_BTS, seen_BTS & near_BTS
        return torch.cat((far_BTS[..., self._far], close_BTS[..., self._close]), dim=-1)
