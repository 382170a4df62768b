"""Retrieval attention in torch: two parts of one softmax, local keys by a fused kernel, joined by their log-sum-exp.

Legend: B rows, H query heads, K key/value heads, T queries, t queries of a block, S local keys, D head width, n chunks
of the bank, c tokens of a chunk, m chunks retrieved.
"""

from __future__ import annotations

import torch
from torch import Tensor

from contextlab.kernels import part
from contextlab.kernels.buffers import contiguous_like
from contextlab.kernels.retrieved import Retrieved


def forward(
    q_BHTD: Tensor,
    k_BKSD: Tensor,
    v_BKSD: Tensor,
    mask_BTS: Tensor,
    q_memory_BHTD: Tensor,
    k_BKncD: Tensor,
    v_BKncD: Tensor,
    ids_BHTm: Tensor,
    retrieved_BHTm: Tensor,
    bias_H: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """`out_BHTD` and the logarithm of the whole softmax's denominator, `lse_BHT`."""
    local_BHTD, local_lse_BHT = part.forward(q_BHTD, k_BKSD, v_BKSD, mask_BTS[:, None], scale, causal=False)
    out_BHTD, lse_BHT = contiguous_like(q_BHTD), contiguous_like(local_lse_BHT)
    retrieved = Retrieved(q_memory_BHTD, k_BKncD, v_BKncD, ids_BHTm, retrieved_BHTm, scale)
    bias_H1 = bias_H.to(lse_BHT.dtype)[:, None]
    for span in retrieved.spans():
        memory_BHtD, memory_lse_BHt = retrieved.attend(span)
        memory_lse_BHt = memory_lse_BHt + bias_H1
        near_BHt = local_lse_BHT[:, :, span]
        weight_BHt1 = torch.sigmoid(memory_lse_BHt - near_BHt)[..., None]
        out_BHTD[:, :, span] = torch.lerp(local_BHTD[:, :, span].to(weight_BHt1.dtype), memory_BHtD, weight_BHt1)
        lse_BHT[:, :, span] = torch.logaddexp(near_BHt, memory_lse_BHt)
    return out_BHTD, lse_BHT


def backward(
    dout_BHTD: Tensor,
    q_BHTD: Tensor,
    k_BKSD: Tensor,
    v_BKSD: Tensor,
    mask_BTS: Tensor,
    q_memory_BHTD: Tensor,
    k_BKncD: Tensor,
    v_BKncD: Tensor,
    ids_BHTm: Tensor,
    retrieved_BHTm: Tensor,
    bias_H: Tensor,
    out_BHTD: Tensor,
    lse_BHT: Tensor,
    scale: float,
    into_bank: bool,
) -> tuple[Tensor, ...]:
    """Gradients of queries, keys, values, the memory's queries, the bias, and the bank (empty unless `into_bank`)."""
    local = (q_BHTD, k_BKSD, v_BKSD, mask_BTS[:, None], scale, False)
    # Every part of a softmax has its gradients from the output and the denominator of the whole.
    dq_BHTD, dk_BKSD, dv_BKSD, _ = part.backward(dout_BHTD, out_BHTD, lse_BHT, *local, into_bias=False)
    retrieved = Retrieved(q_memory_BHTD, k_BKncD, v_BKncD, ids_BHTm, retrieved_BHTm, scale)
    kind, dq_memory_BHTD = lse_BHT.dtype, contiguous_like(q_memory_BHTD)
    dbias_H, bias_H1 = torch.zeros(bias_H.shape, dtype=kind, device=bias_H.device), bias_H.to(kind)[:, None]
    into = retrieved.bank_gradients() if into_bank else None
    for span in retrieved.spans():
        dout_BHtD, out_BHtD = (x[:, :, span].to(kind) for x in (dout_BHTD, out_BHTD))
        delta_BHt1 = (dout_BHtD * out_BHtD).sum(-1, keepdim=True)
        inputs = (span, dout_BHtD, delta_BHt1, lse_BHT[:, :, span] - bias_H1, into)
        dq_memory_BHTD[:, :, span], dlogit_BHt = retrieved.backward(*inputs)
        dbias_H += dlogit_BHt.sum((0, 2))
    dk_BKncD, dv_BKncD = (x.new_empty(0) for x in (k_BKncD, v_BKncD)) if into is None else into
    near = (x.to(like.dtype) for x, like in ((dq_BHTD, q_BHTD), (dk_BKSD, k_BKSD), (dv_BKSD, v_BKSD)))
    far = (dq_memory_BHTD, dbias_H.to(bias_H.dtype), dk_BKncD.to(k_BKncD.dtype), dv_BKncD.to(v_BKncD.dtype))
    return (*(x.contiguous() for x in near), *far)
