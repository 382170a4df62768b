"""The search by faiss: all inner products, and the best of them, on a CPU.

Legend: B rows, H query heads, K key/value heads, T queries, D head width, n chunks of the bank, m chunks retrieved.
"""

from __future__ import annotations

import torch
from torch import Tensor


def search(q_BHTD: Tensor, mean_BKnD: Tensor, count_B: Tensor, take: int) -> tuple[Tensor, Tensor]:
    """`ids_BHTm` and `score_BHTm` as `chunk_topk` returns them."""
    rows, heads, queries, _ = q_BHTD.shape
    group = heads // mean_BKnD.shape[1]
    ids_BHTm = torch.zeros(rows, heads, queries, take, dtype=torch.int64)
    score_BHTm = torch.full(ids_BHTm.shape, float("-inf"))
    for row, count in enumerate(count_B.tolist()):
        m = min(take, count)
        for head, mean_nD in enumerate(mean_BKnD[row, :, :count] if m and queries else ()):
            of_head = slice(head * group, (head + 1) * group)
            score, ids = _knn(q_BHTD[row, of_head].flatten(0, 1), mean_nD, m)
            ids_BHTm[row, of_head, :, :m] = ids.unflatten(0, (group, queries))
            score_BHTm[row, of_head, :, :m] = score.unflatten(0, (group, queries))
    return ids_BHTm, score_BHTm


def _knn(q_SD: Tensor, mean_nD: Tensor, take: int) -> tuple[Tensor, Tensor]:
    import faiss

    queries, means = (x.float().contiguous().numpy() for x in (q_SD, mean_nD))
    score, ids = faiss.knn(queries, means, take, metric=faiss.METRIC_INNER_PRODUCT)
    return torch.from_numpy(score), torch.from_numpy(ids)
