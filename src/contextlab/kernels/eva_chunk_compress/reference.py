"""Chunk compression in plain torch, differentiable. Keys come before rotation: positions do not survive a mean.

The last chunk may be ragged: what it lacks counts as zeros in means and has no weight. Means are over the chunk size.

Legend: B rows, H query heads, K key/value heads, T tokens, D head width, n chunks, c tokens of a chunk.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def chunk_means(x_BHTD: Tensor, chunk: int, kv_heads: int) -> Tensor:
    """`mean_BKnD` over every chunk, and over the heads that share a key head (none for keys themselves)."""
    return _chunked(x_BHTD.unflatten(1, (kv_heads, -1)).mean(2), chunk).mean(3)


def chunk_weights(w_BKnD: Tensor, k_BKTD: Tensor, chunk: int, scale: float, *, features: bool = True) -> Tensor:
    """`p_BKnc`: softmax over a chunk of (w . k - |k|^2/2) scale, positive random features of direction w.

    Args:
        w_BKnD: directions, one per chunk.
        k_BKTD: keys.
        chunk: tokens of a chunk.
        scale: 1/sqrt(D) for features of k/D^(1/4).
        features: without them the norm of the keys is left out, which is plain attention of w.
    """
    k_BKncD = _chunked(k_BKTD, chunk)
    logits_BKnc = (k_BKncD @ w_BKnD[..., None])[..., 0]
    if features:
        logits_BKnc = logits_BKnc - k_BKncD.square().sum(-1) / 2
    real_nc = torch.arange(logits_BKnc.shape[2] * chunk, device=k_BKTD.device).view(-1, chunk) < k_BKTD.shape[2]
    return (logits_BKnc * scale).masked_fill(~real_nc, float("-inf")).softmax(-1)


def pool(p_BKnc: Tensor, x_BKTD: Tensor) -> Tensor:
    """`pooled_BKnD`: weighted sum of every chunk."""
    return (p_BKnc[..., None, :] @ _chunked(x_BKTD, p_BKnc.shape[-1]))[..., 0, :]


def eva_chunk_compress(
    q_mean_BKnD: Tensor,
    k_mean_BKnD: Tensor,
    k_BKTD: Tensor,
    v_BKTD: Tensor,
    noise_BKnD: Tensor | None,
    chunk: int,
    scale: float,
) -> Tensor:
    """`value_BKnD`: values pooled by one random feature per chunk, drawn around the adapted means of queries and keys.

    Args:
        q_mean_BKnD: adapted mean queries, of the unscaled projections.
        k_mean_BKnD: adapted mean keys, which are also the chunks' keys.
        k_BKTD: keys.
        v_BKTD: values.
        noise_BKnD: standard normal in training; None takes the proposal's mean.
        chunk: tokens of a chunk.
        scale: 1/sqrt(D).
    """
    w_BKnD = q_mean_BKnD + k_mean_BKnD
    if noise_BKnD is not None:
        w_BKnD = w_BKnD + noise_BKnD
    return pool(chunk_weights(w_BKnD, k_BKTD, chunk, scale), v_BKTD)


def _chunked(x_BKTD: Tensor, chunk: int) -> Tensor:
    missing = -x_BKTD.shape[2] % chunk
    whole_BKTD = F.pad(x_BKTD, (0, 0, 0, missing)) if missing else x_BKTD
    return whole_BKTD.reshape(*whole_BKTD.shape[:2], -1, chunk, whole_BKTD.shape[3])
