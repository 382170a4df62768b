"""Sink attention on a CPU: sinks and later keys, each by torch's fused kernel, joined by their log-sum-exp.

Legend: B rows, H query heads, K key/value heads, T queries, S keys, D head width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from contextlab.kernels import dispatch, part
from contextlab.kernels.buffers import wide


def fits(q_BHTD: Tensor, v_BKSE: Tensor) -> bool:
    """Whether torch's fused kernel can run: on a CPU, with no dimension of 0, and with values as wide as keys."""
    cpu, width = q_BHTD.device.type == "cpu", q_BHTD.shape[3]
    return cpu and dispatch.forced_form() != "reference" and v_BKSE.shape[3] == width and 0 not in q_BHTD.shape


def sink_attention(
    q_BHTD: Tensor, q_sink_BHTD: Tensor, k_BKSD: Tensor, v_BKSD: Tensor, seen_BTS: Tensor, sinks: int, scale: float
) -> Tensor:
    """See `contextlab.kernels.sink_attention.sink_attention`."""
    # Finite, not -inf: a query that sees no key of one part then has a finite output there, which gets weight 0.
    floor = torch.finfo(q_BHTD.dtype).min / 2
    mask_B1TS = torch.zeros_like(seen_BTS, dtype=q_BHTD.dtype).masked_fill_(~seen_BTS, floor)[:, None]

    def attend(q: Tensor, keys: slice) -> tuple[Tensor, Tensor]:
        return part.forward(q, k_BKSD[:, :, keys], v_BKSD[:, :, keys], mask_B1TS[..., keys], scale, causal=False)

    if not 0 < sinks < k_BKSD.shape[2]:
        return attend(q_sink_BHTD if sinks else q_BHTD, slice(None))[0].contiguous()
    first_BHTD, first_lse_BHT = attend(q_sink_BHTD, slice(0, sinks))
    rest_BHTD, rest_lse_BHT = attend(q_BHTD, slice(sinks, None))
    weight_BHT1 = torch.sigmoid(first_lse_BHT - rest_lse_BHT)[..., None]
    kind = wide(q_BHTD)
    return torch.lerp(rest_BHTD.to(kind), first_BHTD.to(kind), weight_BHT1.to(kind)).to(q_BHTD.dtype).contiguous()
