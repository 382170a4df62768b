"""Sink attention in plain torch: the truth that faster forms are compared with."""

from __future__ import annotations

import torch
from torch import Tensor


def sink_attention(
    q_BHTD: Tensor, q_sink_BHTD: Tensor, k_BKSD: Tensor, v_BKSD: Tensor, seen_BTS: Tensor, sinks: int, scale: float
) -> Tensor:
    """See `contextlab.kernels.sink_attention.sink_attention`."""
    rows, heads, length, width = q_BHTD.shape
    grouped = (rows, k_BKSD.shape[1], -1, length, width)
    k_BK1DS = k_BKSD[:, :, None].transpose(-1, -2)
    logits_BKGTS = (q_BHTD * scale).view(grouped) @ k_BK1DS
    # In place: the logits are by far the largest tensor here, and this operation has no backward.
    logits_BKGTS[..., :sinks] = (q_sink_BHTD * scale).view(grouped) @ k_BK1DS[..., :sinks]
    logits_BKGTS.masked_fill_(~seen_BTS[:, None, None], float("-inf"))
    out_BKGTD = torch.softmax(logits_BKGTS, -1, out=logits_BKGTS) @ v_BKSD[:, :, None]
    return out_BKGTD.reshape(rows, heads, length, -1)
