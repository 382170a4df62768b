"""Joint memory attention in torch: the local part by `kernels.part`, the memory part some queries at a time.

Legend: B rows, H query heads, K key/value heads, t queries of a block, S local keys, s of them visible to a
block, D head width, n chunks of the bank, c tokens of a chunk, m chunks retrieved.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from contextlab.kernels import part
from contextlab.kernels.buffers import contiguous_like, wide
from contextlab.kernels.retrieved import NEVER, Retrieved

BIAS_ELEMENTS = 2**20
LEAST_QUERIES = 16


def local_forward(
    q_BHTD: Tensor, k_BKSD: Tensor, v_BKSD: Tensor, slopes_H: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """`out_BHTD` and the logarithm of every softmax's denominator, `lse_BHT`."""
    out_BHTD, lse_BHT = contiguous_like(q_BHTD), q_BHTD.new_empty(q_BHTD.shape[:3], dtype=wide(q_BHTD))
    for span, visible, bias, causal in _local_blocks(q_BHTD, k_BKSD, slopes_H):
        inputs = (q_BHTD[:, :, span], k_BKSD[:, :, :visible], v_BKSD[:, :, :visible], bias, scale)
        out_BHTD[:, :, span], lse_BHT[:, :, span] = part.forward(*inputs, causal=causal)
    return out_BHTD, lse_BHT


def local_backward(
    dout_BHTD: Tensor,
    q_BHTD: Tensor,
    k_BKSD: Tensor,
    v_BKSD: Tensor,
    out_BHTD: Tensor,
    lse_BHT: Tensor,
    slopes_H: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values."""
    dq_BHTD = contiguous_like(q_BHTD)
    dk_BKSD, dv_BKSD = (torch.zeros(x.shape, dtype=wide(q_BHTD), device=x.device) for x in (k_BKSD, v_BKSD))
    for span, visible, bias, causal in _local_blocks(q_BHTD, k_BKSD, slopes_H):
        dout_BHtD, out_BHtD, lse_BHt, q_BHtD = (x[:, :, span] for x in (dout_BHTD, out_BHTD, lse_BHT, q_BHTD))
        inputs = (q_BHtD, k_BKSD[:, :, :visible], v_BKSD[:, :, :visible], bias, scale, causal)
        dq_BHtD, dk_BKsD, dv_BKsD, _ = part.backward(dout_BHtD, out_BHtD, lse_BHt, *inputs, into_bias=False)
        dq_BHTD[:, :, span] = dq_BHtD
        dk_BKSD[:, :, :visible] += dk_BKsD
        dv_BKSD[:, :, :visible] += dv_BKsD
    return dq_BHTD, dk_BKSD.to(k_BKSD.dtype), dv_BKSD.to(v_BKSD.dtype)


def memory_forward(
    local_BHTD: Tensor,
    q_BHTD: Tensor,
    k_BKncD: Tensor,
    v_BKncD: Tensor,
    ids_BHTm: Tensor,
    retrieved_BHTm: Tensor,
    gate_H: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """`out_BHTD`, the memory part `memory_BHTD` and the logarithm of its denominator, -inf without any chunk."""
    retrieved = Retrieved(q_BHTD, k_BKncD, v_BKncD, ids_BHTm, retrieved_BHTm, scale)
    out_BHTD, memory_BHTD = contiguous_like(local_BHTD), contiguous_like(local_BHTD)
    lse_BHT = q_BHTD.new_empty(q_BHTD.shape[:3], dtype=wide(q_BHTD))
    weight = torch.sigmoid(gate_H.to(lse_BHT.dtype))[:, None, None]
    for span in retrieved.spans():
        memory_BHtD, lse_BHt = retrieved.attend(span)
        local_BHtD = local_BHTD[:, :, span].to(lse_BHT.dtype)
        mixed_BHtD = torch.lerp(local_BHtD, memory_BHtD, weight)
        out_BHTD[:, :, span] = torch.where(lse_BHt[..., None] > NEVER, mixed_BHtD, local_BHtD)
        memory_BHTD[:, :, span], lse_BHT[:, :, span] = memory_BHtD, lse_BHt
    return out_BHTD, memory_BHTD, lse_BHT


def memory_backward(
    dout_BHTD: Tensor,
    local_BHTD: Tensor,
    q_BHTD: Tensor,
    k_BKncD: Tensor,
    v_BKncD: Tensor,
    ids_BHTm: Tensor,
    retrieved_BHTm: Tensor,
    gate_H: Tensor,
    memory_BHTD: Tensor,
    lse_BHT: Tensor,
    scale: float,
    into_bank: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of the local part, queries, gate, and the bank's keys and values (empty unless `into_bank`)."""
    kind, retrieved = wide(q_BHTD), Retrieved(q_BHTD, k_BKncD, v_BKncD, ids_BHTm, retrieved_BHTm, scale)
    dlocal_BHTD, dq_BHTD = contiguous_like(local_BHTD), contiguous_like(q_BHTD)
    into = retrieved.bank_gradients() if into_bank else None
    dgate_H = torch.zeros(gate_H.shape, dtype=kind, device=gate_H.device)
    weight = torch.sigmoid(gate_H.to(kind))[:, None, None]
    for span in retrieved.spans():
        some = lse_BHT[:, :, span, None] > NEVER
        dout_BHtD, local_BHtD, memory_BHtD = (x[:, :, span].to(kind) for x in (dout_BHTD, local_BHTD, memory_BHTD))
        dmixed_BHtD = dout_BHtD * some
        dgate_H += (dmixed_BHtD * (memory_BHtD - local_BHtD)).sum((0, 2, 3))
        dmemory_BHtD = dmixed_BHtD * weight
        dlocal_BHTD[:, :, span] = dout_BHtD - dmemory_BHtD
        delta_BHt1 = (dmemory_BHtD * memory_BHtD).sum(-1, keepdim=True)
        dq_BHTD[:, :, span], _ = retrieved.backward(span, dmemory_BHtD, delta_BHt1, lse_BHT[:, :, span], into)
    weight_H = weight[:, 0, 0]
    dgate_H = (dgate_H * weight_H * (1 - weight_H)).to(gate_H.dtype)
    dk, dv = (x.new_empty(0) for x in (k_BKncD, v_BKncD)) if into is None else into
    return dlocal_BHTD, dq_BHTD, dgate_H, dk.to(k_BKncD.dtype), dv.to(v_BKncD.dtype)


def _spans(length: int, step: int) -> Iterator[slice]:
    return (slice(begin, min(begin + step, length)) for begin in range(0, length, step))


def _local_blocks(
    q_BHTD: Tensor, k_BKSD: Tensor, slopes_H: Tensor | None
) -> Iterator[tuple[slice, int, Tensor | None, bool]]:
    """Blocks of queries, how many keys each sees, the bias of its logits, and whether it is causal."""
    (heads, queries), keys = q_BHTD.shape[1:3], k_BKSD.shape[2]
    if slopes_H is None and queries in (1, keys):
        yield slice(0, queries), keys, None, queries > 1
        return
    per_query = keys if slopes_H is None else heads * keys
    for span in _spans(queries, max(LEAST_QUERIES, BIAS_ELEMENTS // per_query)):
        visible = keys - queries + span.stop
        key = torch.arange(visible, device=q_BHTD.device)
        distance_ts = (key - key[visible - span.stop + span.start :, None]).to(wide(q_BHTD))
        slopes_X = distance_ts.new_zeros(1) if slopes_H is None else slopes_H.to(distance_ts.dtype)
        yield span, visible, (slopes_X[:, None, None] * distance_ts).masked_fill_(distance_ts > 0, NEVER)[None], False
