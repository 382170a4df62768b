"""Retrieval attention in plain torch: the truth that faster forms are compared with.

Legend: B rows, H query heads, K key/value heads, T queries, S local keys, D head width, n chunks of the bank, c tokens
of a chunk, m chunks retrieved, R = m*c tokens retrieved.
"""

from __future__ import annotations

import torch
from torch import Tensor

from contextlab.kernels.joint_memory_attention.reference import gather
from contextlab.kernels.retrieval_attention.inputs import Inputs
from contextlab.kernels.retrieved import in_bank


def retrieval_attention(
    inputs: Inputs,
    scale: float,
) -> Tensor:
    """See `contextlab.kernels.retrieval_attention.retrieval_attention`."""
    q_BHTD, k_BKSD, v_BKSD, mask_BTS, q_memory_BHTD, k_BKncD, v_BKncD, ids_BHTm, retrieved_BHTm, bias_H = inputs
    groups = q_BHTD.shape[1] // k_BKSD.shape[1]
    k_BHSD, v_BHSD = (x.repeat_interleave(groups, dim=1) for x in (k_BKSD, v_BKSD))
    logits_BHTS = q_BHTD @ k_BHSD.transpose(-1, -2) * scale + mask_BTS[:, None].to(q_BHTD.dtype)
    if 0 in (k_BKncD.shape[2], ids_BHTm.shape[3]):
        return logits_BHTS.softmax(-1) @ v_BHSD
    retrieved_BHTm = in_bank(ids_BHTm, retrieved_BHTm, k_BKncD.shape[2])
    ids_BHTm = ids_BHTm.masked_fill(~retrieved_BHTm, 0)
    k_BHTRD, v_BHTRD = (gather(x, ids_BHTm).to(q_BHTD.dtype) for x in (k_BKncD, v_BKncD))
    logits_BHTR = (k_BHTRD @ q_memory_BHTD[..., None])[..., 0] * scale + bias_H.to(q_BHTD.dtype)[:, None, None]
    logits_BHTR = logits_BHTR.masked_fill(~retrieved_BHTm.repeat_interleave(k_BKncD.shape[3], dim=-1), float("-inf"))
    weights = torch.cat((logits_BHTS, logits_BHTR), dim=-1).softmax(-1)
    local_BHTS, memory_BHTR = weights.split((logits_BHTS.shape[-1], logits_BHTR.shape[-1]), dim=-1)
    out_BHTD: Tensor = local_BHTS @ v_BHSD + (memory_BHTR[..., None, :] @ v_BHTRD)[..., 0, :]
    return out_BHTD
