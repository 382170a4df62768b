"""Sink attention in two parts of one softmax, later keys and sinks, joined by their log-sum-exp.

Legend: B rows, H query heads, K key/value heads, T queries, S keys, D head width, E width of values.
"""

from __future__ import annotations

import torch
from torch import Tensor

from contextlab.kernels import dispatch, part
from contextlab.kernels.buffers import wide
from contextlab.kernels.visible import HIDDEN


def fits(q_BHTD: Tensor, v_BKSE: Tensor) -> bool:
    """Whether parts can be computed: with no dimension of 0, and with values as wide as keys."""
    empty = 0 in q_BHTD.shape or 0 in v_BKSE.shape
    return dispatch.forced_form() != "reference" and v_BKSE.shape[3] == q_BHTD.shape[3] and not empty


def forward(
    q_BHTD: Tensor, q_sink_BHTD: Tensor, k_BKSD: Tensor, v_BKSD: Tensor, seen_BTS: Tensor, sinks: int, scale: float
) -> tuple[Tensor, Tensor]:
    """`out_BHTD` and the logarithm of the whole softmax's denominator, `lse_BHT`."""
    mask_B1TS, kind = _mask(seen_BTS, q_BHTD), wide(q_BHTD)
    parts = [
        part.forward(query, k_BKSD[:, :, keys], v_BKSD[:, :, keys], mask_B1TS[..., keys], scale, causal=False)
        for query, keys in zip((q_BHTD, q_sink_BHTD), _keys(k_BKSD, sinks), strict=True)
        if keys.start < keys.stop
    ]
    if len(parts) == 1:
        return parts[0][0].contiguous(), parts[0][1].contiguous()
    (rest_BHTD, rest_lse_BHT), (first_BHTD, first_lse_BHT) = parts
    weight_BHT1 = torch.sigmoid(first_lse_BHT - rest_lse_BHT)[..., None]
    out_BHTD = torch.lerp(rest_BHTD.to(kind), first_BHTD.to(kind), weight_BHT1.to(kind)).to(q_BHTD.dtype)
    return out_BHTD.contiguous(), torch.logaddexp(first_lse_BHT, rest_lse_BHT).contiguous()


def backward(
    dout_BHTD: Tensor,
    q_BHTD: Tensor,
    q_sink_BHTD: Tensor,
    k_BKSD: Tensor,
    v_BKSD: Tensor,
    seen_BTS: Tensor,
    out_BHTD: Tensor,
    lse_BHT: Tensor,
    sinks: int,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of both queries, keys and values."""
    mask_B1TS = _mask(seen_BTS, q_BHTD)
    dq_BHTD, dq_sink_BHTD, dk_BKSD, dv_BKSD = (x.new_zeros(x.shape) for x in (q_BHTD, q_sink_BHTD, k_BKSD, v_BKSD))
    of_queries = ((q_BHTD, dq_BHTD), (q_sink_BHTD, dq_sink_BHTD))
    for (query, into), keys in zip(of_queries, _keys(k_BKSD, sinks), strict=True):
        if keys.start == keys.stop:
            continue
        # Every part of a softmax has its gradients from the output and the denominator of the whole.
        inputs = (query, k_BKSD[:, :, keys], v_BKSD[:, :, keys], mask_B1TS[..., keys], scale, False)
        dq, dk, dv, _ = part.backward(dout_BHTD, out_BHTD, lse_BHT, *inputs, into_bias=False)
        for gradient, value in ((into, dq), (dk_BKSD[:, :, keys], dk), (dv_BKSD[:, :, keys], dv)):
            gradient.copy_(value)
    return dq_BHTD, dq_sink_BHTD, dk_BKSD, dv_BKSD


def _keys(k_BKSD: Tensor, sinks: int) -> tuple[slice, slice]:
    """The keys of the queries and those of the sinks' queries."""
    keys = k_BKSD.shape[2]
    return slice(min(sinks, keys), keys), slice(0, min(sinks, keys))


def _mask(seen_BTS: Tensor, q_BHTD: Tensor) -> Tensor:
    """Numbers to add to the logits, `mask_B1TS`."""
    # Finite: a query that sees no key of one part then has a finite output there, which gets weight 0.
    return torch.zeros_like(seen_BTS, dtype=wide(q_BHTD)).masked_fill_(~seen_BTS, HIDDEN)[:, None]
