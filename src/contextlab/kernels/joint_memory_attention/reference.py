"""Joint memory attention in plain torch: the truth that faster forms are compared with.

Legend: B rows, H query heads, K key/value heads, T queries, S local keys, D head width, n chunks of the bank, c tokens
of a chunk, m chunks retrieved, R = m*c tokens retrieved.
"""

from __future__ import annotations

import torch
from torch import Tensor

QUERIES_AT_ONCE = 128


def joint_memory_attention(
    q_BHTD: Tensor,
    k_BKSD: Tensor,
    v_BKSD: Tensor,
    q_memory_BHTD: Tensor,
    k_BKncD: Tensor,
    v_BKncD: Tensor,
    ids_BHTm: Tensor,
    found_BHTm: Tensor,
    gate_H: Tensor,
    bias: Tensor,
    scale: float,
) -> Tensor:
    """Two softmaxes, one over the local keys and one over the retrieved tokens, mixed by a gate per head.

    Args:
        q_BHTD: queries as the local keys meet them (rotated where the model rotates).
        k_BKSD: local keys.
        v_BKSD: local values.
        q_memory_BHTD: queries as the bank meets them, without any position.
        k_BKncD: keys of the bank.
        v_BKncD: values of the bank.
        ids_BHTm: retrieved chunks.
        found_BHTm: which of them exist; where none does, the output is the local attention, ungated.
        gate_H: raw gate; its sigmoid is the weight of the memory.
        bias: added to the local logits, broadcastable to BHTS; -inf where a key is not visible.
        scale: factor of the logits.

    Returns:
        `out_BHTD`.
    """
    groups = q_BHTD.shape[1] // k_BKSD.shape[1]
    k_BHSD, v_BHSD = (x.repeat_interleave(groups, dim=1) for x in (k_BKSD, v_BKSD))
    local_BHTD = (q_BHTD @ k_BHSD.transpose(-1, -2) * scale + bias).softmax(-1) @ v_BHSD
    memory_BHTD = memory_attention(q_memory_BHTD, k_BKncD, v_BKncD, ids_BHTm, found_BHTm, scale)
    return fuse(local_BHTD, memory_BHTD, gate_H, found_BHTm.any(-1))


def memory_attention(
    q_BHTD: Tensor, k_BKncD: Tensor, v_BKncD: Tensor, ids_BHTm: Tensor, found_BHTm: Tensor, scale: float
) -> Tensor:
    """Attention of every query over its own retrieved tokens, without positions; 0 where nothing was found."""
    parts = [
        _attend(q, k_BKncD, v_BKncD, ids, found, scale)
        for q, ids, found in zip(
            q_BHTD.split(QUERIES_AT_ONCE, dim=2),
            ids_BHTm.split(QUERIES_AT_ONCE, dim=2),
            found_BHTm.split(QUERIES_AT_ONCE, dim=2),
            strict=True,
        )
    ]
    return torch.cat(parts, dim=2)


def fuse(local_BHTD: Tensor, memory_BHTD: Tensor, gate_H: Tensor, found_BHT: Tensor) -> Tensor:
    """(1 - sigmoid(g)) local + sigmoid(g) memory per head; the local attention alone where nothing was found."""
    weight = torch.sigmoid(gate_H.to(local_BHTD.dtype))[:, None, None]
    return torch.where(found_BHT[..., None], local_BHTD + weight * (memory_BHTD - local_BHTD), local_BHTD)


def _attend(
    q_BHTD: Tensor, k_BKncD: Tensor, v_BKncD: Tensor, ids_BHTm: Tensor, found_BHTm: Tensor, scale: float
) -> Tensor:
    k_BHTRD, v_BHTRD = (_gather(x, ids_BHTm).to(q_BHTD.dtype) for x in (k_BKncD, v_BKncD))
    logits_BHTR = (k_BHTRD @ q_BHTD[..., None])[..., 0] * scale
    found_BHTR = found_BHTm.repeat_interleave(k_BKncD.shape[3], dim=-1)
    # A finite floor keeps rows without any chunk free of NaN, forward and backward; they are dropped when fused.
    weights_BHTR = logits_BHTR.masked_fill(~found_BHTR, torch.finfo(logits_BHTR.dtype).min).softmax(-1)
    return (weights_BHTR[..., None, :] @ v_BHTRD)[..., 0, :]


def _gather(x_BKncD: Tensor, ids_BHTm: Tensor) -> Tensor:
    rows, heads = ids_BHTm.shape[:2]
    row = torch.arange(rows, device=ids_BHTm.device)[:, None, None, None]
    head = torch.arange(heads, device=ids_BHTm.device)[:, None, None] // (heads // x_BKncD.shape[1])
    return x_BKncD[row, head, ids_BHTm].flatten(3, 4)
