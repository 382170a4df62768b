"""Causal attention over a cache and new tokens.

Legend: B rows, T new tokens, S tokens in the cache, H query heads, K key/value heads, D head width.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.bias import CausalBias, CausalVariant
from torch.utils._mode_utils import no_dispatch

from contextlab.attention.cache import KV, Growth, Packing
from contextlab.attention.rotary import Positions, per_head, rotate, same_rows
from contextlab.kernels.visible import blocks

UNMASKED = ("cuda", "meta")
"""Devices whose kernels know causal queries that are fewer than the keys; `meta` has the shapes of CUDA alone."""

ATTENTION = F.scaled_dot_product_attention


class LowerRight(CausalBias):
    """Torch's bias of causal queries that are the last of the keys, for calls that are counted too.

    Torch's own knows attention by its name in torch, where a `ProductCounter` stands for the duration of a count.
    """

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Attention of torch, in the form that this bias chooses."""
        if func is ATTENTION:
            return cls._dispatch(*args, **(kwargs or {}))
        return super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]


def sdpa(q_BHTD: Tensor, k_BKSD: Tensor, v_BKSD: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Softmax attention with grouped heads; without a mask it is causal, and the queries are the last of the keys."""
    if not q_BHTD.is_cpu:
        return _fused(q_BHTD, k_BKSD, v_BKSD, mask, scale)
    outs = [
        _fused(q_BHTD[:, :, queries], k_BKSD[:, :, keys], v_BKSD[:, :, keys], block_mask, scale)
        for queries, keys, block_mask in blocks(mask)
    ]
    return outs[0] if len(outs) == 1 else torch.cat(outs, dim=2)


def _fused(q_BHTD: Tensor, k_BKSD: Tensor, v_BKSD: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    groups, queries, keys = q_BHTD.shape[1] // k_BKSD.shape[1], q_BHTD.shape[2], k_BKSD.shape[2]
    # The fused kernel of CUDA for grouped heads has no mask and 16 bits; others would build the whole score matrix.
    if groups > 1 and q_BHTD.device.type in UNMASKED and (mask is not None or q_BHTD.itemsize > 2):
        k_BKSD, v_BKSD = (x.repeat_interleave(groups, dim=1) for x in (k_BKSD, v_BKSD))
        groups = 1
    causal = mask is None and 1 < queries == keys
    if mask is None and queries not in (1, keys):
        # It holds no numbers, and those who watch operations cannot be shown how it is made.
        with no_dispatch():
            mask = LowerRight(CausalVariant.LOWER_RIGHT, queries, keys)
    return F.scaled_dot_product_attention(
        q_BHTD, k_BKSD, v_BKSD, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=groups > 1
    )


@dataclasses.dataclass(frozen=True)
class Layout:
    """Positions of the new tokens of one forward pass, and which keys they see.

    Attributes:
        position_BT: position of every new token, counted like the slots of the cache.
        group_T: which candidate a new token belongs to; candidates see the cache and themselves, not each other.
        band: how many tokens a query attends to, itself and those just before it; None for all.
        first: slots at the beginning that every query sees whatever the band.
        tail_position_BP: positions of the cache's last P slots, where earlier tokens of the candidates lie side by
            side after the slots in use.
        tail_group_P: which candidate each of these belongs to.
        packing: of groups that the pass goes beyond; None where there are none.
    """

    position_BT: Tensor
    group_T: Tensor | None = None
    band: int | None = None
    first: int = 0
    tail_position_BP: Tensor | None = None
    tail_group_P: Tensor | None = None
    packing: Packing | None = None

    @property
    def plain(self) -> bool:
        """Whether the new tokens see all that is before them."""
        return self.group_T is None and self.band is None


class CacheReader:
    """Causal attention over a cache and the new tokens; a token's position is its slot.

    Call it as `attend` of one forward pass, then take the grown cache with `grown`.
    """

    def __init__(self, positions: Positions, kv: KV, layout: Layout) -> None:
        self.positions, self.kv, self.layout = positions, kv, layout
        self.cached = kv.slots
        tail_BP = layout.tail_position_BP if layout.tail_position_BP is not None else layout.position_BT[:, :0]
        self.shared = self.cached - tail_BP.shape[1]
        self.key_position_BS = _after_slots(self.shared, tail_BP, layout.position_BT)
        self._growth = Growth(kv, layout.position_BT.shape[1])
        self.k, self.v = self._growth.k, self._growth.v
        dtype = kv.k[0].dtype
        self._q_rotary = per_head(positions, layout.position_BT, dtype)
        self._k_rotary = per_head(positions, self.key_position_BS, dtype) if kv.raw else None
        self.level = kv.level
        plain = layout.plain and layout.tail_position_BP is None and positions.slopes_H is None
        self._all_seen = self.level and plain
        self._masks: dict[int | None, Tensor] = {}

    def __call__(
        self, layer: int, q_BHTD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, scale: float, window: int | None = None
    ) -> Tensor:
        """Append the new keys and values of a layer and attend."""
        k_BKSD, v_BKSD = self.append(k_BKTD, v_BKTD)
        return self.attend(rotate(q_BHTD, self._q_rotary), k_BKSD, v_BKSD, scale, window)

    def attend(self, q_BHTD: Tensor, k_BKSD: Tensor, v_BKSD: Tensor, scale: float, window: int | None) -> Tensor:
        """Attention of rotated queries to what they see of a layer's keys; a mask is made only where it is needed."""

        def part(queries: slice, keys: slice) -> Tensor:
            q_BHtD, k_BKsD, v_BKsD = q_BHTD[:, :, queries], k_BKSD[:, :, keys], v_BKSD[:, :, keys]
            maskless = q_BHtD.shape[2] in (1, k_BKsD.shape[2])
            maskless = maskless or (type(q_BHTD) is Tensor and q_BHTD.device.type in UNMASKED)
            mask = None if maskless and self.causal(window) else self.mask(window, q_BHTD.dtype)[..., queries, keys]
            return sdpa(q_BHtD, k_BKsD, v_BKsD, mask, scale)

        return self.in_parts(k_BKSD, v_BKSD, part)

    def in_parts(self, k_BKSD: Tensor, v_BKSD: Tensor, part: Callable[[slice, slice], Tensor]) -> Tensor:
        """Attention of all queries, from one end of a group to the next where the pass packs groups.

        A group becomes what packing leaves of it, in place, before the next queries.

        Args:
            k_BKSD: keys of a layer, all of them.
            v_BKSD: its values.
            part: attention of some queries to the slots up to the last of them.
        """
        packing = self.layout.packing
        if packing is None:
            return part(slice(None), slice(None))
        outs, begin = list[Tensor](), 0
        for end in packing.ends:
            stop = self.cached + end
            outs.append(part(slice(begin, end), slice(stop)))
            group = slice(stop - packing.tokens, stop)
            k_BKSD[:, :, group], v_BKSD[:, :, group] = packing.pack(k_BKSD[:, :, group], v_BKSD[:, :, group])
            begin = end
        return torch.cat((*outs, part(slice(begin, None), slice(None))), dim=2)

    def append(self, k_BKTD: Tensor, v_BKTD: Tensor) -> tuple[Tensor, Tensor]:
        """Rotated keys, and values, of the next layer: the cache's, then the new ones. Layers come in order."""
        if len(self.k) in self.kv.raw:
            k_BKSD, v_BKSD = self._growth.append(k_BKTD, v_BKTD)
            return rotate(k_BKSD, self._k_rotary), v_BKSD
        return self._growth.append(rotate(k_BKTD, self._q_rotary), v_BKTD)

    def causal(self, window: int | None) -> bool:
        """Whether every new token sees all keys up to its own, and nothing is added to the scores."""
        return self._all_seen and self.narrow(window) is None

    def narrow(self, window: int | None) -> int | None:
        """A window of the model's own, where it hides keys of this pass."""
        return window if window is not None and window < self.key_position_BS.shape[1] else None

    def seen_keys(self, window: int | None) -> Tensor:
        """`visible`, with one row for all where the rows are equal."""
        return same_rows(self.visible(self.narrow(window)))

    def mask(self, window: int | None, dtype: torch.dtype) -> Tensor:
        """Added to scores, broadcastable to BHTS: -inf for what is not seen."""
        if window not in self._masks:
            self._masks[window] = self._build_mask(window, dtype)
        return self._masks[window]

    def visible(self, window: int | None = None) -> Tensor:
        """`visible_BTS`: which keys each new token sees."""
        query, key = self.layout.position_BT[:, :, None], self.key_position_BS[:, None, :]
        seen_BTS = key <= query
        slot = torch.arange(key.shape[-1], device=key.device)
        if not self.level:
            seen_BTS &= (slot >= self.shared) | (slot < self.kv.used_B.to(slot.device)[:, None, None])
        if self.layout.group_T is not None:
            of_cache = self.layout.group_T.new_full((self.shared,), -1)
            tail_P = self.layout.tail_group_P if self.layout.tail_group_P is not None else of_cache[:0]
            group_S = torch.cat((of_cache, tail_P, self.layout.group_T))
            seen_BTS &= (group_S == -1) | (group_S == self.layout.group_T[:, None])
        if self.layout.band is not None:
            seen_BTS &= (key > query - self.layout.band) | (key < self.layout.first)
        if window is not None:
            seen_BTS &= key > query - window
        return seen_BTS

    def grown(self, lengths_B: Tensor) -> KV:
        """The cache with each row's first `lengths_B` new tokens appended."""
        return self._growth.packed(lengths_B)

    def side_by_side(self) -> KV:
        """The cache with the tokens of all candidates after the slots in use, for the next pass of a longer tail."""
        return self._growth.grown(self.kv.used_B)

    def _build_mask(self, window: int | None, dtype: torch.dtype) -> Tensor:
        slopes_H = self.positions.slopes_H
        visible = self.seen_keys(window)[:, None]
        if slopes_H is None:
            # As floating-point numbers, to which every layer would otherwise convert it again.
            return torch.zeros_like(visible, dtype=dtype).masked_fill_(~visible, float("-inf"))
        distance = self.key_position_BS[:, None, None, :] - self.layout.position_BT[:, None, :, None]
        bias = slopes_H.to(dtype)[:, None, None] * distance.to(dtype)
        return bias.masked_fill(~visible, float("-inf"))


def _after_slots(slots: int, *positions_BP: Tensor) -> Tensor:
    """Positions of keys: so many slots in their order, then others; equal rows lie in the memory of one."""
    rows = positions_BP[0].shape[0]
    if rows > 1 and all(part.stride(0) == 0 or not part.numel() for part in positions_BP):
        return _after_slots(slots, *(part[:1] for part in positions_BP)).expand(rows, -1)
    slots_BS = torch.arange(slots, device=positions_BP[0].device).expand(rows, -1)
    return torch.cat((slots_BS, *positions_BP), dim=1)
