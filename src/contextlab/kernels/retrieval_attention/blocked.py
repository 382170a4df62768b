"""Retrieval attention in torch: two parts of one softmax, local keys by a fused kernel, joined by their log-sum-exp.

Legend: B rows, H query heads, K key/value heads, T queries, t queries of a block, S local keys, D head width, n chunks
of the bank, c tokens of a chunk, m chunks retrieved.
"""

from __future__ import annotations

import torch
from torch import Tensor

from contextlab.kernels import part
from contextlab.kernels.buffers import contiguous_like
from contextlab.kernels.retrieval_attention.inputs import Inputs
from contextlab.kernels.retrieved import Retrieved


def forward(
    inputs: Inputs,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """`out_BHTD` and the logarithm of the whole softmax's denominator, `lse_BHT`."""
    near, far = _parts(inputs, scale)
    local_BHTD, local_lse_BHT = part.forward(*near, causal=False)
    out_BHTD, lse_BHT = contiguous_like(inputs.q_BHTD), contiguous_like(local_lse_BHT)
    bias_H1 = inputs.bias_H.to(lse_BHT.dtype)[:, None]
    for span in far.spans():
        memory_BHtD, memory_lse_BHt = far.attend(span)
        memory_lse_BHt = memory_lse_BHt + bias_H1
        near_BHt = local_lse_BHT[:, :, span]
        weight_BHt1 = torch.sigmoid(memory_lse_BHt - near_BHt)[..., None]
        out_BHTD[:, :, span] = torch.lerp(local_BHTD[:, :, span].to(weight_BHt1.dtype), memory_BHtD, weight_BHt1)
        lse_BHT[:, :, span] = torch.logaddexp(near_BHt, memory_lse_BHt)
    return out_BHTD, lse_BHT


def backward(
    dout_BHTD: Tensor,
    inputs: Inputs,
    out_BHTD: Tensor,
    lse_BHT: Tensor,
    scale: float,
    into_bank: bool,
) -> tuple[Tensor, ...]:
    """Gradients of queries, keys, values, the memory's queries, the bias, and the bank (empty unless `into_bank`)."""
    near, far = _parts(inputs, scale)
    # Every part of a softmax has its gradients from the output and the denominator of the whole.
    d_near = part.backward(dout_BHTD, out_BHTD, lse_BHT, *near, False, into_bias=False)[:3]
    kind, dq_memory_BHTD, bias_H = lse_BHT.dtype, contiguous_like(inputs.q_memory_BHTD), inputs.bias_H
    dbias_H, bias_H1 = torch.zeros(bias_H.shape, dtype=kind, device=bias_H.device), bias_H.to(kind)[:, None]
    into = far.bank_gradients() if into_bank else None
    for span in far.spans():
        dout_BHtD, out_BHtD = (x[:, :, span].to(kind) for x in (dout_BHTD, out_BHTD))
        delta_BHt1 = (dout_BHtD * out_BHtD).sum(-1, keepdim=True)
        lse_BHt = lse_BHT[:, :, span] - bias_H1
        dq_memory_BHTD[:, :, span], dlogit_BHt = far.backward(span, dout_BHtD, delta_BHt1, lse_BHt, into)
        dbias_H += dlogit_BHt.sum((0, 2))
    bank = inputs.k_BKncD, inputs.v_BKncD
    d_bank = (x.new_empty(0) for x in bank) if into is None else into
    return (
        *(dx.to(x.dtype).contiguous() for dx, x in zip(d_near, inputs[:3], strict=True)),
        dq_memory_BHTD,
        dbias_H.to(bias_H.dtype),
        *(dx.to(x.dtype) for dx, x in zip(d_bank, bank, strict=True)),
    )


def _parts(inputs: Inputs, scale: float) -> tuple[tuple[Tensor, Tensor, Tensor, Tensor, float], Retrieved]:
    """The local part of the softmax, as `kernels.part` takes it, and the retrieved part."""
    near = (inputs.q_BHTD, inputs.k_BKSD, inputs.v_BKSD, inputs.mask_BTS[:, None], scale)
    return near, Retrieved(*inputs[4:9], scale)
