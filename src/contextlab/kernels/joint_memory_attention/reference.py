"""Joint memory attention in plain torch: the reference for the faster forms.

Legend: B rows, H query heads, K key/value heads, T queries, S local keys, D head width, n chunks of the bank, c tokens
of a chunk, m chunks retrieved, R = m*c tokens retrieved.
"""

from __future__ import annotations

import torch
from torch import Tensor

from contextlab.kernels.retrieved import in_bank


def local_attention(q_BHTD: Tensor, k_BKSD: Tensor, v_BKSD: Tensor, slopes_H: Tensor | None, scale: float) -> Tensor:
    """See `contextlab.kernels.joint_memory_attention.local_attention`."""
    queries, keys = q_BHTD.shape[2], k_BKSD.shape[2]
    groups = q_BHTD.shape[1] // k_BKSD.shape[1]
    k_BHSD, v_BHSD = (x.repeat_interleave(groups, dim=1) for x in (k_BKSD, v_BKSD))
    position = torch.arange(keys, device=q_BHTD.device)
    distance_TS = position - position[keys - queries :, None]
    logits_BHTS = q_BHTD @ k_BHSD.transpose(-1, -2) * scale
    if slopes_H is not None:
        logits_BHTS = logits_BHTS + slopes_H.to(q_BHTD.dtype)[:, None, None] * distance_TS
    return logits_BHTS.masked_fill(distance_TS > 0, float("-inf")).softmax(-1) @ v_BHSD


def fuse_memory(
    local_BHTD: Tensor,
    q_BHTD: Tensor,
    k_BKncD: Tensor,
    v_BKncD: Tensor,
    ids_BHTm: Tensor,
    retrieved_BHTm: Tensor,
    gate_H: Tensor,
    scale: float,
) -> Tensor:
    """See `contextlab.kernels.joint_memory_attention.fuse_memory`."""
    if 0 in (k_BKncD.shape[2], ids_BHTm.shape[3]):
        return local_BHTD
    retrieved_BHTm = in_bank(ids_BHTm, retrieved_BHTm, k_BKncD.shape[2])
    memory_BHTD = memory_attention(q_BHTD, k_BKncD, v_BKncD, ids_BHTm, retrieved_BHTm, scale)
    weight = torch.sigmoid(gate_H.to(local_BHTD.dtype))[:, None, None]
    mixed_BHTD = local_BHTD + weight * (memory_BHTD - local_BHTD)
    return torch.where(retrieved_BHTm.any(-1, keepdim=True), mixed_BHTD, local_BHTD)


def memory_attention(
    q_BHTD: Tensor, k_BKncD: Tensor, v_BKncD: Tensor, ids_BHTm: Tensor, retrieved_BHTm: Tensor, scale: float
) -> Tensor:
    """Attention of every query over its own retrieved tokens, without positions; finite for a query without chunks."""
    ids_BHTm = ids_BHTm.masked_fill(~retrieved_BHTm, 0)
    k_BHTRD, v_BHTRD = (gather(x, ids_BHTm).to(q_BHTD.dtype) for x in (k_BKncD, v_BKncD))
    logits_BHTR = (k_BHTRD @ q_BHTD[..., None])[..., 0] * scale
    retrieved_BHTR = retrieved_BHTm.repeat_interleave(k_BKncD.shape[3], dim=-1)
    # Finite, not -inf: queries without any chunk get no NaN, forward and backward; their output is not used.
    weights_BHTR = logits_BHTR.masked_fill(~retrieved_BHTR, torch.finfo(logits_BHTR.dtype).min).softmax(-1)
    return (weights_BHTR[..., None, :] @ v_BHTRD)[..., 0, :]


def gather(x_BKncD: Tensor, ids_BHTm: Tensor) -> Tensor:
    """`x_BHTRD`: the tokens of the chunks; query heads share key heads in consecutive groups."""
    rows, heads = ids_BHTm.shape[:2]
    row = torch.arange(rows, device=ids_BHTm.device)[:, None, None, None]
    head = torch.arange(heads, device=ids_BHTm.device)[:, None, None] // (heads // x_BKncD.shape[1])
    return x_BKncD[row, head, ids_BHTm].flatten(3, 4)
