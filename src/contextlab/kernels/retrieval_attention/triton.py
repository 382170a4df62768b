"""Retrieval attention in Triton: the local part, then one softmax that goes on from it over the retrieved chunks.

Legend: B rows, H query heads, K key/value heads, T queries, D head width, n chunks of the bank, c tokens of a chunk,
m chunks retrieved.
"""

from __future__ import annotations

import torch
from torch import Tensor

from contextlab.kernels import part, retrieved_triton
from contextlab.kernels.retrieval_attention.inputs import Inputs


def forward(inputs: Inputs, scale: float) -> tuple[Tensor, Tensor]:
    """See `blocked.forward`."""
    local_BHTD, local_lse_BHT = part.forward(*inputs[:3], inputs.mask_BTS[:, None], scale, causal=False)
    read = _read(inputs)
    out_BHTD, lse_BHT = torch.empty_like(local_BHTD), torch.empty_like(local_lse_BHT)
    grid, sizes, shape = retrieved_triton.launch(read.k_BKncD, read.ids_BHTm, joint=True)
    retrieved_triton.forward_kernel[grid](
        local_BHTD,
        local_lse_BHT,
        *read[4:],
        out_BHTD,
        None,
        lse_BHT,
        *sizes,
        *read.k_BKncD.stride()[:3],
        scale,
        **shape,
    )
    return out_BHTD, lse_BHT


def backward(
    dout_BHTD: Tensor,
    inputs: Inputs,
    out_BHTD: Tensor,
    lse_BHT: Tensor,
    scale: float,
    into_bank: bool,
) -> tuple[Tensor, ...]:
    """See `blocked.backward`; the bank's gradients are summed in no fixed order, so last bits may differ."""
    dout_BHTD, out_BHTD, lse_BHT = (x.contiguous() for x in (dout_BHTD, out_BHTD, lse_BHT))
    near = (*inputs[:3], inputs.mask_BTS[:, None], scale)
    d_near = part.backward(dout_BHTD, out_BHTD, lse_BHT, *near, False, into_bias=False)[:3]
    read = _read(inputs)
    dq_memory_BHTD, dbias_BHT = torch.empty_like(read.q_memory_BHTD), torch.empty_like(lse_BHT)
    d_bank = retrieved_triton.bank_gradients(read.k_BKncD, read.v_BKncD, into_bank)
    grid, sizes, shape = retrieved_triton.launch(read.k_BKncD, read.ids_BHTm, joint=True)
    retrieved_triton.backward_kernel[grid](
        dout_BHTD,
        None,
        *read[4:],
        out_BHTD,
        lse_BHT,
        None,
        dq_memory_BHTD,
        dbias_BHT,
        *d_bank,
        *sizes,
        *read.k_BKncD.stride()[:3],
        scale,
        INTO_BANK=into_bank,
        **shape,
    )
    dbias_H = dbias_BHT.sum((0, 2)).to(read.bias_H.dtype)
    return *d_near, dq_memory_BHTD, dbias_H, *(dx.to(read.k_BKncD.dtype) for dx in d_bank)


def _read(inputs: Inputs) -> Inputs:
    """The inputs as the kernels read those of the memory: contiguous, or with strides that they are given."""
    k_BKncD, v_BKncD = retrieved_triton.in_one_step(inputs.k_BKncD, inputs.v_BKncD)
    return inputs._replace(
        q_memory_BHTD=inputs.q_memory_BHTD.contiguous(),
        k_BKncD=k_BKncD,
        v_BKncD=v_BKncD,
        ids_BHTm=inputs.ids_BHTm.contiguous(),
        retrieved_BHTm=inputs.retrieved_BHTm.contiguous().view(torch.int8),
        bias_H=inputs.bias_H.contiguous(),
    )
