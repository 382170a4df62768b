"""Chunk search in torch, a block of the bank at a time: what cannot be among the best any more is never sorted.

Legend: B rows, H query heads, K key/value heads, T queries, D head width, n chunks of the bank, m chunks taken,
s chunks of a block, Q queries of a block, all of one key head, x new candidates.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

FIRST_CHUNKS = 64
MOST_CHUNKS = 4096
QUERIES = 256
NEVER = float("-inf")


def search(q_BHTD: Tensor, mean_BKnD: Tensor, count_B: Tensor, take: int) -> tuple[Tensor, Tensor]:
    """See `contextlab.kernels.chunk_topk.chunk_topk`."""
    rows, heads, queries, width = q_BHTD.shape
    kv_heads, chunks = mean_BKnD.shape[1:3]
    by_head = (rows, kv_heads, heads // kv_heads * queries)
    q_BKQD = q_BHTD.float().reshape(*by_head, width)
    ids_BKQm = torch.zeros(*by_head, take, dtype=torch.int64, device=q_BHTD.device)
    score_BKQm = torch.full(ids_BKQm.shape, NEVER, device=q_BHTD.device)
    if take > 0:
        used = count_B.clamp(max=chunks).tolist()
        for b, k, begin in itertools.product(range(rows), range(kv_heads), range(0, by_head[2], QUERIES)):
            block = (b, k, slice(begin, begin + QUERIES))
            _search_one_head(q_BKQD[block], mean_BKnD[b, k, : used[b]], ids_BKQm[block], score_BKQm[block])
    return ids_BKQm.view(rows, heads, queries, take), score_BKQm.view(rows, heads, queries, take)


def _search_one_head(q_QD: Tensor, mean_nD: Tensor, ids_Qm: Tensor, score_Qm: Tensor) -> None:
    begin = 0
    while begin < len(mean_nD):
        # As many chunks again as were seen before: about as many candidates in every block, and few blocks.
        end = begin + min(max(begin, FIRST_CHUNKS), MOST_CHUNKS)
        _merge(q_QD @ mean_nD[begin:end].float().T, begin, ids_Qm, score_Qm)
        begin = end


def _merge(score_Qs: Tensor, begin: int, ids_Qm: Tensor, score_Qm: Tensor) -> None:
    """Sort a block's candidates into the best so far, in place."""
    # An equal score further on never displaces one before it: ties go to the lower id.
    query, place = (score_Qs > score_Qm[:, -1:]).nonzero(as_tuple=True)
    if len(query) == 0:
        return
    found, turn, number = query.unique_consecutive(return_inverse=True, return_counts=True)
    nth = torch.arange(len(query), device=query.device) - (number.cumsum(0) - number)[turn]
    shape = (len(found), int(number.max()))
    new_ids_Qx, new_score_Qx = ids_Qm.new_zeros(shape), score_Qm.new_full(shape, NEVER)
    new_ids_Qx[turn, nth] = place + begin
    new_score_Qx[turn, nth] = score_Qs[query, place]
    # The best so far have lower ids and lie in order, the candidates lie in order of their ids: a stable sort keeps it.
    score, order = torch.cat((score_Qm[found], new_score_Qx), 1).sort(dim=1, descending=True, stable=True)
    take = ids_Qm.shape[1]
    ids_Qm[found] = torch.cat((ids_Qm[found], new_ids_Qx), 1).gather(1, order[:, :take])
    score_Qm[found] = score[:, :take]
