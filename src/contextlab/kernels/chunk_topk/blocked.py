"""Chunk search in torch, some queries at a time: of the groups of chunks only the best are looked into.

The best m chunks of a query lie in the m groups of the highest maxima: a chunk outside of them has m better ones, the
maxima of these groups. With ties to the lower group and to the lower chunk that holds for equal scores too.

Legend: B rows, H query heads, K key/value heads, T queries, D head width, n chunks of the bank, m chunks taken,
g groups of chunks, Q queries of one key head, x chunks of the best groups.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from contextlab.kernels.chunk_topk.reference import best

GROUP = 16
SCORES = 2**22
"""Scores that are held at one time."""


def search(q_BHTD: Tensor, mean_BKnD: Tensor, count_B: Tensor, take: int) -> tuple[Tensor, Tensor]:
    """See `contextlab.kernels.chunk_topk.chunk_topk`."""
    rows, heads, queries, width = q_BHTD.shape
    kv_heads, chunks = mean_BKnD.shape[1:3]
    by_head = (rows, kv_heads, heads // kv_heads * queries)
    q_BKQD = q_BHTD.float().reshape(*by_head, width)
    ids_BKQm = torch.zeros(*by_head, take, dtype=torch.int64, device=q_BHTD.device)
    score_BKQm = torch.full(ids_BKQm.shape, float("-inf"), device=q_BHTD.device)
    used = count_B.clamp(0, chunks).tolist() if take and queries else [0] * rows
    for b, k in itertools.product((b for b in range(rows) if used[b]), range(kv_heads)):
        mean_nD = mean_BKnD[b, k, : used[b]].float()
        strip = max(1, SCORES // used[b])
        for begin in range(0, by_head[2], strip):
            block = (b, k, slice(begin, begin + strip))
            ids_Qm, score_Qm = _search_one_head(q_BKQD[block], mean_nD, min(take, used[b]))
            ids_BKQm[block][:, : used[b]] = ids_Qm.masked_fill(score_Qm.isneginf(), 0)
            score_BKQm[block][:, : used[b]] = score_Qm
    return ids_BKQm.view(rows, heads, queries, take), score_BKQm.view(rows, heads, queries, take)


def _search_one_head(q_QD: Tensor, mean_nD: Tensor, take: int) -> tuple[Tensor, Tensor]:
    chunks, groups = len(mean_nD), -(-len(mean_nD) // GROUP)
    # Chunks before queries: the maximum over a group then runs along memory.
    score_nQ = q_QD.new_full((groups * GROUP, len(q_QD)), float("-inf"))
    torch.mm(mean_nD, q_QD.T, out=score_nQ[:chunks])
    highest_gQ = score_nQ.view(groups, GROUP, -1).amax(1)
    _, group_Qm = best(highest_gQ.T.contiguous(), min(take, groups))
    within = torch.arange(GROUP, device=q_QD.device)
    # In the order of their ids, so that ties among them go to the lower one.
    ids_Qx = (group_Qm.sort(1).values[..., None] * GROUP + within).flatten(1)
    score_Qm, place_Qm = best(score_nQ.gather(0, ids_Qx.T).T.contiguous(), take)
    return ids_Qx.gather(1, place_Qm), score_Qm
