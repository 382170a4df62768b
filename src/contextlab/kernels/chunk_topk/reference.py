"""Chunk search in plain torch: the reference for the faster forms.

Legend: B rows, H query heads, K key/value heads, T queries, D head width, n chunks of the bank, m chunks retrieved.
"""

from __future__ import annotations

import torch
from torch import Tensor

SHARE = 64


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
    """The highest values along the last dimension and their indices, highest first; ties go to the lower index."""
    length = score.shape[-1]
    # One value more than `take` shows whether the last one has an equal that is left out.
    padded = _padded(score, take)
    highest, ids = padded.topk(min(take + 1, length), dim=-1)
    if padded is not score:
        ids.clamp_(max=length - 1)  # padding has the score -inf
    equal = (highest[..., 1:] == highest[..., :-1]) & (highest[..., 1:] > float("-inf"))
    tied = equal.any(-1)
    highest, ids = highest[..., :take].contiguous(), ids[..., :take].contiguous()
    # topk promises no order of equal values, and repeated text makes equal chunks. A stable sort orders these.
    if bool(tied.any()):
        ordered = score[tied].sort(dim=-1, descending=True, stable=True)
        highest[tied], ids[tied] = ordered.values[..., :take], ordered.indices[..., :take]
    return highest, ids


def _padded(score: Tensor, take: int) -> Tensor:
    """The scores, padded where `topk` would otherwise use its slower algorithm: on a CPU below 64 values per result."""
    length = score.shape[-1]
    short = SHARE * (take + 1) - length
    if score.device.type != "cpu" or not 0 < short <= SHARE:
        return score
    return torch.nn.functional.pad(score, (0, short), value=float("-inf"))
