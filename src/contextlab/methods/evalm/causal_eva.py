"""Causal EVA as its authors' module computes it (EVA, Zheng et al. 2023), from the same weights.

Legend: B rows, T tokens, t queries of a window, S local keys, C width, H heads, D head width, n chunks.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from contextlab.errors import UserError
from contextlab.kernels.eva_attention import eva_attention
from contextlab.kernels.eva_chunk_compress import chunk_means, eva_chunk_compress
from contextlab.methods.evalm.config import Geometry, check_chunks

NORM_EPSILON = 1e-5


class RelativeBias(nn.Module):
    """T5's bias by distance, one table for all heads."""

    def __init__(self, buckets: int, max_distance: int) -> None:
        super().__init__()
        self.relative_attention_bias = nn.Embedding(buckets, 1)
        self.buckets, self.max_distance = buckets, max_distance

    def forward(self, distance_tS: Tensor) -> Tensor:
        """`bias_tS`; exact buckets up to half of them, then logarithmic."""
        exact = self.buckets // 2
        distance_tS = distance_tS.clamp(min=0)
        growth = math.log(max(self.max_distance / exact, 1 + 1e-9))
        far_tS = exact + (distance_tS.clamp(min=1) / exact).log() / growth * (self.buckets - exact)
        bucket_tS = torch.where(distance_tS < exact, distance_tS, far_tS.long().clamp(max=self.buckets - 1))
        bias_tS: Tensor = self.relative_attention_bias(bucket_tS)[..., 0]
        return bias_tS


class CausalEVA(nn.Module):
    """Self-attention with projections: local windows exactly, earlier chunks as summaries, in one softmax.

    Inputs shorter than a chunk are plain local attention. Right padding needs no mask: attention is causal.

    Args:
        width: C.
        heads: H.
        window: W, a multiple of the chunk.
        chunk: c.
        adaptive: maps of the mean queries and keys: linear and layer norm, `qk`, or linear only, `no-ln`.
        relative_bias: T5's bias on local logits.
        overlap: whether the previous window is local too.
        remote_visibility: `before_chunk`, all chunks before a query's own; or `before_window`, those that have left
            the local view.
        shifted_distances: with overlap, take T5's distances W too short, as the released module does: keys at most W
            tokens back then share bucket 0, those of the own window among them.

    Raises:
        UserError: when the chunks do not fill the window, or the heads not the width.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        window: int,
        chunk: int,
        *,
        adaptive: Literal["qk", "no-ln"] = "qk",
        relative_bias: bool = False,
        overlap: bool = False,
        remote_visibility: Literal["before_chunk", "before_window"] = "before_chunk",
        shifted_distances: bool = False,
    ) -> None:
        super().__init__()
        check_chunks(window, chunk)
        if width % heads:
            raise UserError(f"The width {width} must be a multiple of the number of heads {heads}.")
        self.heads, self.head_width, self.window, self.chunk = heads, width // heads, window, chunk
        self.extension = window if overlap else 0
        self.shift = self.extension if shifted_distances else 0
        own = remote_visibility == "before_chunk"
        self.geometry = Geometry(window, chunk, sinks=0, recent=self.extension, far=0, own=own)
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(width, width) for _ in range(4))
        self.adaptive_mu_q, self.adaptive_mu_k = (_adaptive(self.head_width, adaptive) for _ in range(2))
        reach = window + self.extension
        self.rel_pos_bias = RelativeBias(min(max(reach // 2, 16), 64), reach) if relative_bias else None
        for linear in (self.q_proj, self.k_proj, self.v_proj, self.adaptive_mu_q[0], self.adaptive_mu_k[0]):
            nn.init.xavier_uniform_(linear.weight, gain=2**-0.5)  # type: ignore[arg-type]
        nn.init.xavier_uniform_(self.out_proj.weight)
        nn.init.zeros_(self.out_proj.bias)

    def forward(self, x_BTC: Tensor, noise_BHnD: Tensor | None = None) -> Tensor:
        """`out_BTC`.

        Args:
            x_BTC: inputs; causal self-attention.
            noise_BHnD: standard normal, one draw per chunk and head, in training (see `draw`).
        """
        q_BHTD, k_BHTD, v_BHTD = (
            linear(x_BTC).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for linear in (self.q_proj, self.k_proj, self.v_proj)
        )
        scale = self.head_width**-0.5
        q_mean_BHnD, k_mean_BHnD = self.means(q_BHTD, k_BHTD)
        value_BHnD = eva_chunk_compress(
            q_mean_BHnD, k_mean_BHnD, k_BHTD, v_BHTD, chunk=self.chunk, scale=scale, noise_BKnD=noise_BHnD
        )
        position_T = torch.arange(x_BTC.shape[1], device=x_BTC.device)
        counts_BT = self.geometry.counts(position_T).expand(len(x_BTC), -1)
        out_BHTD = self._attend(q_BHTD, k_BHTD, v_BHTD, (k_mean_BHnD, value_BHnD), counts_BT, scale)
        out_BTC: Tensor = self.out_proj(out_BHTD.transpose(1, 2).flatten(2))
        return out_BTC

    def means(self, q_BHTD: Tensor, k_BHTD: Tensor) -> tuple[Tensor, Tensor]:
        """Adapted mean queries and keys of all chunks, the last one filled up with zeros."""
        q_BHnD, k_BHnD = (chunk_means(x_BHTD, self.chunk, self.heads) for x_BHTD in (q_BHTD, k_BHTD))
        return self.adaptive_mu_q(q_BHnD), self.adaptive_mu_k(k_BHnD)

    def draw(self, rows: int, length: int, generator: torch.Generator | None = None) -> Tensor:
        """`noise_BHnD` for one training step."""
        like = self.out_proj.bias
        shape = (rows, self.heads, -(-length // self.chunk), self.head_width)
        return torch.randn(shape, generator=generator, dtype=like.dtype, device=like.device)

    def _attend(
        self,
        q_BHTD: Tensor,
        k_BHTD: Tensor,
        v_BHTD: Tensor,
        chunks: tuple[Tensor, Tensor],
        counts_BT: Tensor,
        scale: float,
    ) -> Tensor:
        if self.rel_pos_bias is None:
            return eva_attention(
                q_BHTD,
                k_BHTD,
                v_BHTD,
                *chunks,
                scale=scale,
                counts_BT=counts_BT,
                window=self.window,
                overlap=self.extension > 0,
            )
        outs = []
        # Window by window: the bias of all of them would be a whole matrix.
        for begin in range(0, q_BHTD.shape[2], self.window):
            first, end = max(begin - self.extension, 0), min(begin + self.window, q_BHTD.shape[2])
            position_S = torch.arange(first, end, device=q_BHTD.device)
            distance_tS = position_S[begin - first :, None] - position_S
            bias_tS = (self.rel_pos_bias(distance_tS - self.shift) * scale).masked_fill(distance_tS < 0, float("-inf"))
            operands = (q_BHTD[:, :, begin:end], k_BHTD[:, :, first:end], v_BHTD[:, :, first:end], *chunks)
            outs.append(eva_attention(*operands, scale=scale, bias=bias_tS, counts_BT=counts_BT[:, begin:end]))
        return torch.cat(outs, dim=2)


def _adaptive(width: int, kind: Literal["qk", "no-ln"]) -> nn.Sequential:
    norm = [nn.LayerNorm(width, eps=NORM_EPSILON)] if kind == "qk" else []
    return nn.Sequential(nn.Linear(width, width), *norm)
