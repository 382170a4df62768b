"""EVA attention in plain torch, with all scores in memory: the reference for the other forms."""

from __future__ import annotations

import torch
from torch import Tensor


def eva_attention(
    q_BHTD: Tensor,
    k_BKSD: Tensor,
    v_BKSD: Tensor,
    chunk_k_BKnD: Tensor,
    chunk_v_BKnD: Tensor,
    bias: Tensor | None,
    counts_BT: Tensor | None,
    chunk_bias_H: Tensor | None,
    scale: float,
    window: int,
    overlap: int,
) -> Tensor:
    """See `contextlab.kernels.eva_attention.eva_attention`; `overlap` in tokens."""
    length, keys, chunks = q_BHTD.shape[2], k_BKSD.shape[2], chunk_k_BKnD.shape[2]
    local_BHTS = _logits(q_BHTD, k_BKSD, scale)
    if bias is None:
        position_S = torch.arange(keys, device=q_BHTD.device)
        query_T1 = position_S[keys - length :, None]
        seen_TS = (position_S <= query_T1) & (position_S >= query_T1 // window * window - overlap)
        local_BHTS = local_BHTS.masked_fill(~seen_TS, float("-inf"))
    else:
        local_BHTS = local_BHTS + bias
    remote_BHTn = _logits(q_BHTD, chunk_k_BKnD, scale)
    if chunk_bias_H is not None:
        remote_BHTn = remote_BHTn + chunk_bias_H[:, None, None]
    if counts_BT is not None:
        hidden_B1Tn = torch.arange(chunks, device=q_BHTD.device) >= counts_BT[:, None, :, None]
        remote_BHTn = remote_BHTn.masked_fill(hidden_B1Tn, float("-inf"))
    weights = torch.cat((local_BHTS, remote_BHTn), dim=-1).softmax(-1).to(v_BKSD.dtype)
    return _weigh(weights[..., :keys], v_BKSD) + _weigh(weights[..., keys:], chunk_v_BKnD)


def _logits(q_BHTD: Tensor, k_BKSD: Tensor, scale: float) -> Tensor:
    return (_grouped(q_BHTD * scale, k_BKSD) @ k_BKSD[:, :, None].transpose(-1, -2)).flatten(1, 2)


def _weigh(weights_BHTS: Tensor, v_BKSD: Tensor) -> Tensor:
    return (_grouped(weights_BHTS, v_BKSD) @ v_BKSD[:, :, None]).flatten(1, 2)


def _grouped(x_BHTD: Tensor, like_BKSD: Tensor) -> Tensor:
    rows, heads, length, width = x_BHTD.shape
    return x_BHTD.reshape(rows, like_BKSD.shape[1], heads // like_BKSD.shape[1], length, width)
