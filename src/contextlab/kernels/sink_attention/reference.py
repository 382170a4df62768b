"""Sink attention in plain torch: the reference for the faster forms.

Legend: B rows, H query heads, K key/value heads, G query heads per key head, T queries, S keys, D width of queries and
keys, E width of values.
"""

from __future__ import annotations

import torch
from torch import Tensor

from contextlab.kernels.buffers import wide


def sink_attention(
    q_BHTD: Tensor, q_sink_BHTD: Tensor, k_BKSD: Tensor, v_BKSE: Tensor, seen_BTS: Tensor, sinks: int, scale: float
) -> Tensor:
    """See `contextlab.kernels.sink_attention.sink_attention`."""
    return with_lse(q_BHTD, q_sink_BHTD, k_BKSD, v_BKSE, seen_BTS, sinks, scale)[0]


def with_lse(
    q_BHTD: Tensor, q_sink_BHTD: Tensor, k_BKSD: Tensor, v_BKSE: Tensor, seen_BTS: Tensor, sinks: int, scale: float
) -> tuple[Tensor, Tensor]:
    """The same, and the logarithm of every softmax's denominator, `lse_BHT`."""
    rows, heads, length, width = q_BHTD.shape
    grouped = (rows, k_BKSD.shape[1], heads // k_BKSD.shape[1], length, width)
    k_BK1DS = k_BKSD[:, :, None].transpose(-1, -2)
    logits_BKGTS = (q_BHTD * scale).view(grouped) @ k_BK1DS
    # In place: the logits are by far the largest tensor here, and nothing is differentiated.
    logits_BKGTS[..., :sinks] = (q_sink_BHTD * scale).view(grouped) @ k_BK1DS[..., :sinks]
    logits_BKGTS.masked_fill_(~seen_BTS[:, None, None], float("-inf"))
    lse_BHT = logits_BKGTS.logsumexp(-1).to(wide(q_BHTD)).reshape(rows, heads, length)
    out_BKGTE = torch.softmax(logits_BKGTS, -1, out=logits_BKGTS) @ v_BKSE[:, :, None]
    return out_BKGTE.reshape(rows, heads, length, v_BKSE.shape[3]), lse_BHT


def with_graph(
    q_BHTD: Tensor, q_sink_BHTD: Tensor, k_BKSD: Tensor, v_BKSE: Tensor, seen_BTS: Tensor, sinks: int, scale: float
) -> Tensor:
    """The same, differentiable in queries, keys and values."""
    groups = q_BHTD.shape[1] // k_BKSD.shape[1]
    k_BHSD, v_BHSE = (x.repeat_interleave(groups, dim=1) for x in (k_BKSD, v_BKSE))
    first, rest = k_BHSD[:, :, :sinks], k_BHSD[:, :, sinks:]
    logits_BHTS = torch.cat((q_sink_BHTD @ first.mT, q_BHTD @ rest.mT), dim=-1) * scale
    return logits_BHTS.masked_fill(~seen_BTS[:, None], float("-inf")).softmax(-1) @ v_BHSE
