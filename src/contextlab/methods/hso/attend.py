"""Attention of one window over the cache, which remembers the gradient of everything cached that is in view.

Legend: B rows, T tokens of the window, S slots in view, H query heads, K key/value heads, D head width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from contextlab.attention import per_head, rotate, sdpa
from contextlab.backbone import Backbone


class WindowAttend(ABC):
    """Attention of one pass over a window, which remembers the gradient of all that is cached and in view.

    Attributes:
        gradients: after `differentiate`, of what lies in `cached`, under its number there.
        view: slots in view.
    """

    def __init__(
        self, backbone: Backbone, cached: Sequence[Tensor], slot_BT: Tensor, position_BT: Tensor, *, fixed: bool
    ) -> None:
        """Put a window into the cache.

        Args:
            backbone: for its positions.
            cached: what is cached of every layer, `(B, heads, S, width)`; written to.
            slot_BT: where the window's states go; a query sees the slots up to its own.
            position_BT: of the window's tokens.
            fixed: leave the states of the window as they stand in the cache.
        """
        self.backbone, self.cached, self.fixed = backbone, cached, fixed
        self.gradients: dict[int, Tensor] = {}
        self.slot_BT, self.view = slot_BT, cached[0].shape[2]
        self.rotary = per_head(backbone, position_BT)
        self._masks: dict[int | None, Tensor] = {}

    @abstractmethod
    def __call__(
        self, layer: int, q_BHTD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, scale: float, window: int | None = None
    ) -> Tensor:
        """Attention of one layer, in the cache's precision."""

    @abstractmethod
    def differentiate(self, logprobs_BT: Tensor, weight_BT: Tensor) -> None:
        """Fill `gradients` with those of the weighted sum of log-probabilities."""

    def hidden(self, tokens_BT: Tensor, position_BT: Tensor) -> Tensor:
        """`hidden_BTC` of the window."""
        return self.backbone.forward(tokens_BT, position_BT, self)

    def slot_index(self, x_BKSD: Tensor) -> Tensor:
        """`slot_BT` as an index into the slots of `x_BKSD`."""
        rows, heads, _, width = x_BKSD.shape
        return self.slot_BT[:, None, :, None].expand(rows, heads, -1, width)

    def mask(self, window: int | None, dtype: torch.dtype) -> Tensor:
        """Which slots each query sees, `(B, 1, T, S)`, or what is added to its scores."""
        if window not in self._masks:
            query_BT1, slopes_H = self.slot_BT[:, :, None], self.backbone.slopes_H
            slot_S = torch.arange(self.view, device=query_BT1.device)
            visible = slot_S <= query_BT1
            if window is not None:
                visible &= slot_S > query_BT1 - window
            mask = visible[:, None]
            if slopes_H is not None:
                bias = slopes_H.to(dtype)[:, None, None] * (slot_S - query_BT1)[:, None].to(dtype)
                mask = bias.masked_fill(~mask, float("-inf"))
            self._masks[window] = mask
        return self._masks[window]


class KeyValueAttend(WindowAttend):
    """Writes the window's rotated keys and values into their slots of the cache and attends to all slots up to there.

    Gradients are total derivatives: keys and values of the window act through their own layer and all above it.
    """

    def __init__(
        self,
        backbone: Backbone,
        cached: Sequence[Tensor],
        slot_BT: Tensor,
        position_BT: Tensor,
        *,
        fixed: bool = False,
        shift: Sequence[Tensor] | None = None,
    ) -> None:
        """Put a window into the cache of keys, `k_BKSD` of every layer, and of values; see `WindowAttend`.

        `shift` is added to the window's states, one `x_BKTD` for every one of `cached`.
        """
        super().__init__(backbone, cached, slot_BT, position_BT, fixed=fixed)
        self.shift = shift
        self.anchor = torch.zeros((), device=slot_BT.device, requires_grad=True)

    def __call__(
        self, layer: int, q_BHTD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, scale: float, window: int | None = None
    ) -> Tensor:
        """Attention of one layer, in the cache's precision."""
        width = self.cached[0].dtype
        q, k, v = (x.to(width) for x in (q_BHTD, k_BKTD, v_BKTD))
        k_BKSD = self._join(layer, rotate(k, self.rotary))
        v_BKSD = self._join(self.backbone.layers + layer, v)
        return sdpa(rotate(q, self.rotary), k_BKSD, v_BKSD, self.mask(window, width), scale).to(q_BHTD.dtype)

    def differentiate(self, logprobs_BT: Tensor, weight_BT: Tensor) -> None:
        """Fill `gradients` with those of the weighted sum of log-probabilities."""
        torch.autograd.grad(logprobs_BT, self.anchor, weight_BT)

    def _join(self, i: int, new_BKTD: Tensor) -> Tensor:
        if self.shift is not None:
            new_BKTD = new_BKTD + self.shift[i]
        joined: Tensor = _Join.apply(new_BKTD, self.anchor, self, i)  # type: ignore[no-untyped-call]
        return joined


class _Join(torch.autograd.Function):
    """Puts new states into the cache without copying it, and hands the gradient of all of it to `attend.gradients`.

    The anchor makes every layer's gradient wanted, also the first's, below which nothing is.
    """

    @staticmethod
    def forward(ctx: Any, new_BKTD: Tensor, _anchor: Tensor, attend: KeyValueAttend, i: int) -> Tensor:
        ctx.attend, ctx.i = attend, i
        cached_BKSD = attend.cached[i]
        if not attend.fixed:
            cached_BKSD.scatter_(2, attend.slot_index(cached_BKSD), new_BKTD)
        return cached_BKSD.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor, None, None]:
        (gradient_BKSD,) = gradients
        ctx.attend.gradients[ctx.i] = gradient_BKSD
        deeper = ctx.needs_input_grad[0] and not ctx.attend.fixed
        new_BKTD = gradient_BKSD.gather(2, ctx.attend.slot_index(gradient_BKSD)) if deeper else None
        return new_BKTD, gradient_BKSD.new_zeros(()), None, None
