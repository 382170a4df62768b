"""Chunk search in plain torch: the truth that faster forms are compared with.

Legend: B rows, H query heads, K key/value heads, T queries, D head width, n chunks of the bank, m chunks taken.
"""

from __future__ import annotations

import torch
from torch import Tensor


def chunk_topk(q_BHTD: Tensor, mean_BKnD: Tensor, count_B: Tensor, take: int) -> tuple[Tensor, Tensor]:
    """See `contextlab.kernels.chunk_topk.chunk_topk`."""
    kv_heads, chunks = mean_BKnD.shape[1:3]
    grouped_BKGTD = q_BHTD.float().unflatten(1, (kv_heads, q_BHTD.shape[1] // kv_heads))
    score_BKGTn = grouped_BKGTD @ mean_BKnD.float()[:, :, None].transpose(-1, -2)
    free_Bn = torch.arange(chunks, device=q_BHTD.device) >= count_B[:, None]
    score_BHTn = score_BKGTn.flatten(1, 2).masked_fill(free_Bn[:, None, None], float("-inf"))
    score_BHTm, ids_BHTm = best(score_BHTn, min(take, chunks))
    missing = take - ids_BHTm.shape[-1]
    score_BHTm = torch.nn.functional.pad(score_BHTm, (0, missing), value=float("-inf"))
    ids_BHTm = torch.nn.functional.pad(ids_BHTm, (0, missing))
    return ids_BHTm.masked_fill(score_BHTm == float("-inf"), 0), score_BHTm


def best(score: Tensor, take: int) -> tuple[Tensor, Tensor]:
    """The highest values along the last dimension and their places, highest first, ties to the lower place."""
    highest, ids = score.topk(take, dim=-1)
    if take == 0:
        return highest, ids
    # topk promises no order among equals, and repeated text makes equal chunks: then a stable sort decides.
    tied = (score == highest[..., -1:]).sum(-1) > (highest == highest[..., -1:]).sum(-1)
    if take > 1:
        tied |= (highest[..., 1:] == highest[..., :-1]).any(-1)
    tied &= highest[..., 0] > float("-inf")
    if bool(tied.any()):
        ordered = score[tied].sort(dim=-1, descending=True, stable=True)
        highest[tied], ids[tied] = ordered.values[..., :take], ordered.indices[..., :take]
    return highest, ids
