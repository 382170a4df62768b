"""The memory part in Triton: attention to the retrieved chunks, then a mixture of both parts.

Legend: B rows, H query heads, K key/value heads, T queries, D head width, n chunks of the bank, c tokens of a chunk,
m chunks retrieved.
"""

from __future__ import annotations

import torch
from torch import Tensor

from contextlab.kernels import retrieved_triton


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
    """See `blocked.memory_forward`."""
    local_BHTD, q_BHTD, ids_BHTm, gate_H = (x.contiguous() for x in (local_BHTD, q_BHTD, ids_BHTm, gate_H))
    k_BKncD, v_BKncD = retrieved_triton.in_one_step(k_BKncD, v_BKncD)
    out_BHTD, memory_BHTD = torch.empty_like(local_BHTD), torch.empty_like(local_BHTD)
    lse_BHT = q_BHTD.new_empty(q_BHTD.shape[:3], dtype=torch.float32)
    grid, sizes, shape = retrieved_triton.launch(k_BKncD, ids_BHTm, joint=False)
    retrieved_triton.forward_kernel[grid](
        local_BHTD,
        None,
        q_BHTD,
        k_BKncD,
        v_BKncD,
        ids_BHTm,
        retrieved_BHTm.contiguous().view(torch.int8),
        gate_H,
        out_BHTD,
        memory_BHTD,
        lse_BHT,
        *sizes,
        *k_BKncD.stride()[:3],
        scale,
        **shape,
    )
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
    """See `blocked.memory_backward`; the bank's gradients are summed in no fixed order, so last bits may differ."""
    dout_BHTD, local_BHTD, q_BHTD = (x.contiguous() for x in (dout_BHTD, local_BHTD, q_BHTD))
    ids_BHTm, gate_H = ids_BHTm.contiguous(), gate_H.contiguous()
    memory_BHTD, lse_BHT = memory_BHTD.contiguous(), lse_BHT.contiguous()
    k_BKncD, v_BKncD = retrieved_triton.in_one_step(k_BKncD, v_BKncD)
    dlocal_BHTD, dq_BHTD, dgate_BHT = torch.empty_like(local_BHTD), torch.empty_like(q_BHTD), torch.empty_like(lse_BHT)
    dk, dv = retrieved_triton.bank_gradients(k_BKncD, v_BKncD, into_bank)
    grid, sizes, shape = retrieved_triton.launch(k_BKncD, ids_BHTm, joint=False)
    retrieved_triton.backward_kernel[grid](
        dout_BHTD,
        local_BHTD,
        q_BHTD,
        k_BKncD,
        v_BKncD,
        ids_BHTm,
        retrieved_BHTm.contiguous().view(torch.int8),
        gate_H,
        memory_BHTD,
        lse_BHT,
        dlocal_BHTD,
        dq_BHTD,
        dgate_BHT,
        dk,
        dv,
        *sizes,
        *k_BKncD.stride()[:3],
        scale,
        INTO_BANK=into_bank,
        **shape,
    )
    dgate_H = dgate_BHT.sum((0, 2)).to(gate_H.dtype)
    return dlocal_BHTD, dq_BHTD, dgate_H, dk.to(k_BKncD.dtype), dv.to(v_BKncD.dtype)
