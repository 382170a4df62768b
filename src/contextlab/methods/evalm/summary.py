"""The summary of a chunk, a key and a value, and its weight in attention: all that EVALM trains beside a backbone.

Legend: B rows, H query heads, K key/value heads, T tokens, D head width, n chunks.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from contextlab.backbone import Backbone
from contextlab.kernels.eva_chunk_compress import chunk_means, eva_chunk_compress, pool_chunks
from contextlab.methods.evalm.config import EVALMConfig

NORM_EPSILON = 1e-5


class AdaptiveMap(nn.Module):
    """A linear map per key head, the identity at first, followed by a layer norm if `norm` (EVA, f_q, f_k)."""

    def __init__(self, kv_heads: int, width: int, *, norm: bool) -> None:
        super().__init__()
        self.weight_KDD = nn.Parameter(torch.eye(width).repeat(kv_heads, 1, 1))
        self.bias_KD = nn.Parameter(torch.zeros(kv_heads, width))
        self.norm = nn.LayerNorm(width, eps=NORM_EPSILON) if norm else nn.Identity()

    def forward(self, x_BKnD: Tensor) -> Tensor:
        """`mapped_BKnD`."""
        mapped_BKnD: Tensor = self.norm(x_BKnD @ self.weight_KDD + self.bias_KD[:, None])
        return mapped_BKnD


class Summary(nn.Module):
    """The summaries of one layer: mean keys, and values pooled by a feature; identity maps at first."""

    def __init__(self, heads: int, kv_heads: int, width: int, config: EVALMConfig) -> None:
        super().__init__()
        norm = config.adaptive == "qk"
        self.chunk, self.kv_heads = config.c, kv_heads
        self.query_map = AdaptiveMap(kv_heads, width, norm=norm) if config.pooling == "eva" else None
        self.key_map = AdaptiveMap(kv_heads, width, norm=norm)
        self.value_map_KDD = nn.Parameter(torch.eye(width).repeat(kv_heads, 1, 1))
        self.pooling_KD = nn.Parameter(torch.zeros(kv_heads, width))
        bias = float("-inf") if config.remote_bias is None else config.remote_bias
        self.remote_bias_H = nn.Parameter(torch.full((heads,), bias))

    def forward(
        self, q_mean_BKnD: Tensor | None, k_BKTD: Tensor, v_BKTD: Tensor, noise_BKnD: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Keys and values of whole chunks.

        Args:
            q_mean_BKnD: mean queries of the chunks, unscaled; only `eva` needs them.
            k_BKTD: keys without RoPE, chunk after chunk.
            v_BKTD: values.
            noise_BKnD: of the random features, in training.

        Returns:
            `key_BKnD` and `value_BKnD`.
        """
        scale = k_BKTD.shape[-1] ** -0.5
        constant_K1D = self.pooling_KD[:, None]
        if self.query_map is None:
            rows, chunks = k_BKTD.shape[0], k_BKTD.shape[2] // self.chunk
            w_BKnD = constant_K1D.expand(rows, -1, chunks, -1)
            pooled_BKnD, value_BKnD = pool_chunks(w_BKnD, k_BKTD, v_BKTD, chunk=self.chunk, scale=scale)
            key_BKnD = self.key_map(pooled_BKnD)
        else:
            assert q_mean_BKnD is not None
            key_BKnD = self.key_map(chunk_means(k_BKTD, self.chunk, self.kv_heads))
            query_BKnD = self.query_map(q_mean_BKnD) + constant_K1D
            value_BKnD = eva_chunk_compress(
                query_BKnD, key_BKnD, k_BKTD, v_BKTD, chunk=self.chunk, scale=scale, noise_BKnD=noise_BKnD
            )
        return key_BKnD, value_BKnD @ self.value_map_KDD


def summaries(backbone: Backbone, config: EVALMConfig) -> nn.ModuleList:
    """One `Summary` per layer, in the backbone's type and on its device."""
    of_layers = (
        Summary(backbone.heads, backbone.kv_heads, backbone.head_width, config) for _ in range(backbone.layers)
    )
    return nn.ModuleList(of_layers).to(backbone.device, backbone.attention_dtype)


def query_factor(scale: float, width: int) -> float:
    """The factor from queries as attention receives them to unscaled ones: OPT scales its queries itself."""
    return scale * math.sqrt(width)
