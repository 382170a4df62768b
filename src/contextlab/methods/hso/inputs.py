"""Attention of one window over cached inputs of layers, from which keys and values are made again.

Legend: B rows, T tokens of the window, P slots in front of it, S slots in view, K key/value heads, D head width,
C width of the model.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from contextlab.attention import per_head, rotate, sdpa
from contextlab.backbone import KeyValueProjections
from contextlab.methods.hso.attend import WindowAttend


class InputAttend(WindowAttend):
    """Makes keys and values of the cached inputs, and writes the window's own inputs into the cache.

    Keys are rotated at the positions at which their tokens were read. Gradients are total derivatives: inputs of the
    window act through the queries, keys and values of their own layer, and through all above it.
    """

    def __init__(
        self,
        projections: KeyValueProjections,
        cached: Sequence[Tensor],
        slot_BT: Tensor,
        position_BT: Tensor,
        *,
        past: int,
        offset_B: Tensor,
        past_moves: bool,
        fixed: bool = False,
        shift: Sequence[Tensor] | None = None,
    ) -> None:
        """Put a window into the cache of inputs, `x_B1SC` of every layer; see `WindowAttend`.

        Args:
            projections: of the backbone's layers.
            cached: what every layer's attention was given.
            slot_BT: where the window's states go.
            position_BT: of the window's tokens.
            past: slots of the longest row in front of the window.
            offset_B: by how many positions a row's positions lie after its slots.
            past_moves: whether gradients of what is in front of the window are wanted.
            fixed: make all keys and values of what stands in the cache, those of the window too.
            shift: added to the window's inputs, one `x_B1TC` for every layer.
        """
        super().__init__(projections.backbone, cached, slot_BT, position_BT, fixed=fixed)
        self.projections, self.shift = projections, shift
        self.past, self.moves = (self.view, True) if fixed else (past, past_moves)
        slot_P = torch.arange(self.past, device=slot_BT.device)
        self._past_rotary = per_head(self.backbone, offset_B[:, None] + slot_P)
        self._past: list[Tensor] = []
        self._new: list[Tensor] = []

    def hidden(self, tokens_BT: Tensor, position_BT: Tensor) -> Tensor:
        """`hidden_BTC` of the window."""
        with self.projections.watching(self._enter):
            return super().hidden(tokens_BT, position_BT)

    def __call__(
        self, layer: int, q_BHTD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, scale: float, window: int | None = None
    ) -> Tensor:
        """Attention of one layer, in the cache's precision."""
        width = self.cached[0].dtype
        q = rotate(q_BHTD.to(width), self.rotary)
        k_BKSD, v_BKSD = self._of_past(layer)
        if not self.fixed:
            k_BKSD = self._after(k_BKSD, rotate(k_BKTD.to(width), self.rotary))
            v_BKSD = self._after(v_BKSD, v_BKTD.to(width))
        return sdpa(q, k_BKSD, v_BKSD, self.mask(window, width), scale).to(q_BHTD.dtype)

    def differentiate(self, logprobs_BT: Tensor, weight_BT: Tensor) -> None:
        """Fill `gradients` with those of the weighted sum of log-probabilities."""
        past = self._past if self.past and self.moves else []
        new = [] if self.fixed else self._new
        gradients = torch.autograd.grad(logprobs_BT, [*past, *new], weight_BT)
        for layer, x_B1SC in enumerate(self.cached):
            g_B1SC = torch.zeros_like(x_B1SC)
            if past:
                g_B1SC[:, 0, : self.past] = gradients[layer]
            if new:
                g_B1TC = gradients[len(past) + layer][:, None].to(g_B1SC.dtype)
                g_B1SC.scatter_(2, self.slot_index(g_B1SC), g_B1TC)
            self.gradients[layer] = g_B1SC

    def _enter(self, layer: int, x_BTC: Tensor) -> Tensor:
        """What the attention of a layer is given, in the cache from here on."""
        if self.fixed:
            return x_BTC
        x_B1SC = self.cached[layer]
        if self.shift is not None:
            x_BTC = x_BTC + self.shift[layer][:, 0].to(x_BTC.dtype)
        if torch.is_grad_enabled() and not x_BTC.requires_grad:  # the first layer's, below which nothing is
            x_BTC = x_BTC.detach().requires_grad_()
        x_B1SC.scatter_(2, self.slot_index(x_B1SC), x_BTC.detach()[:, None].to(x_B1SC.dtype))
        self._new.append(x_BTC)
        return x_BTC

    def _of_past(self, layer: int) -> tuple[Tensor, Tensor]:
        """Rotated keys `k_BKPD`, and values, of what lies in front of the window."""
        x_BPC = self.cached[layer][:, 0, : self.past].detach()
        if torch.is_grad_enabled() and self.moves:
            self._past.append(x_BPC.requires_grad_())
        k_BKPD, v_BKPD = self.projections(layer, x_BPC.to(self.backbone.dtype))
        return rotate(k_BKPD.to(x_BPC.dtype), self._past_rotary), v_BKPD.to(x_BPC.dtype)

    def _after(self, past_BKPD: Tensor, new_BKTD: Tensor) -> Tensor:
        """The slots in view, those of the window with its own states."""
        whole_BKSD = pad(past_BKPD, (0, 0, 0, self.view - self.past))
        return whole_BKSD.scatter(2, self.slot_index(whole_BKSD), new_BKTD)
