"""Chunk search in torch: few scores are ranked together; of many scores only the best groups of chunks are ranked.

The best m chunks of a query lie in the m groups with the highest maxima: for a chunk outside of them, the maxima of
these groups are m better chunks. This also holds for equal scores, because ties go to the lower group and chunk.

Legend: B rows, H query heads, K key/value heads, T queries, D head width, n chunks of the bank, m chunks retrieved,
g groups of chunks, Q queries of one key head, x chunks of the best groups.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from contextlab.kernels.chunk_topk.reference import best

GROUP = 16
NEVER = float("-inf")
SCORES = 2**22
"""Most scores in memory at one time."""
STRIP = 256
"""Queries whose scores are in memory together where a bank has many chunks, which are then read in parts."""
QUERIES = 64
CHUNKS = 256
"""Queries of a head, and chunks per retrieved one, from which on groups are faster than ranking every score."""


def search(q_BHTD: Tensor, mean_BKnD: Tensor, count_B: Tensor, take: int) -> tuple[Tensor, Tensor]:
    """See `contextlab.kernels.chunk_topk.chunk_topk`."""
    rows, heads, queries, width = q_BHTD.shape
    kv_heads, chunks = mean_BKnD.shape[1:3]
    q_BKQD = q_BHTD.float().reshape(rows, kv_heads, heads // kv_heads * queries, width)
    used = count_B.clamp(0, chunks).tolist() if queries else [0] * rows
    longest = max(used, default=0)
    best_m = min(take, longest)
    at_once = rows * heads * queries * longest <= SCORES and not _in_groups(q_BKQD.shape[2], longest, best_m)
    score_BKQm, ids_BKQm = (_search_at_once if at_once else _search_by_head)(q_BKQD, mean_BKnD, used, best_m)
    if best_m < take:
        score_BKQm = torch.nn.functional.pad(score_BKQm, (0, take - best_m), value=NEVER)
        ids_BKQm = torch.nn.functional.pad(ids_BKQm, (0, take - best_m))
    ids_BKQm.masked_fill_(score_BKQm == NEVER, 0)
    return ids_BKQm.reshape(rows, heads, queries, take), score_BKQm.reshape(rows, heads, queries, take)


def _in_groups(queries: int, chunks: int, take: int) -> bool:
    return queries >= QUERIES and chunks >= CHUNKS * take


def _search_at_once(q_BKQD: Tensor, mean_BKnD: Tensor, used: list[int], take: int) -> tuple[Tensor, Tensor]:
    score_BKQn = q_BKQD @ mean_BKnD[:, :, : max(used, default=0)].float().transpose(-1, -2)
    for score_KQn, count in zip(score_BKQn, used, strict=True):
        score_KQn[..., count:] = NEVER
    return best(score_BKQn, take)


def _search_by_head(q_BKQD: Tensor, mean_BKnD: Tensor, used: list[int], take: int) -> tuple[Tensor, Tensor]:
    score_BKQm = q_BKQD.new_full((*q_BKQD.shape[:3], take), NEVER)
    ids_BKQm = torch.zeros(score_BKQm.shape, dtype=torch.int64, device=q_BKQD.device)
    for b, k in itertools.product((b for b, count in enumerate(used) if count), range(q_BKQD.shape[1])):
        mean_nD = mean_BKnD[b, k, : used[b]].float()
        width = min(used[b], max(take, SCORES // STRIP, 1))
        strip = max(1, SCORES // width)
        for begin in range(0, q_BKQD.shape[2], strip):
            block = (b, k, slice(begin, begin + strip))
            best_block = (*block, slice(0, used[b]))
            score_BKQm[best_block], ids_BKQm[best_block] = _search_in_parts(q_BKQD[block], mean_nD, take, width)
    return score_BKQm, ids_BKQm


def _search_in_parts(q_QD: Tensor, mean_nD: Tensor, take: int, width: int) -> tuple[Tensor, Tensor]:
    """The best of the best of so many chunks at a time; in the order of the parts ties still go to the lower id."""
    begins = range(0, len(mean_nD), width)
    parts = [mean_nD[begin : begin + width] for begin in begins]
    best_of_parts = [_search_one_head(q_QD, part, min(take, len(part))) for part in parts]
    if len(best_of_parts) == 1:
        return best_of_parts[0]
    ids_Qx = torch.cat([ids + begin for begin, (_, ids) in zip(begins, best_of_parts, strict=True)], dim=1)
    score_Qm, index_Qm = best(torch.cat([score for score, _ in best_of_parts], dim=1), min(take, len(mean_nD)))
    return score_Qm, ids_Qx.gather(1, index_Qm)


def _search_one_head(q_QD: Tensor, mean_nD: Tensor, take: int) -> tuple[Tensor, Tensor]:
    if not _in_groups(len(q_QD), len(mean_nD), take):
        return best(q_QD @ mean_nD.T, take)
    chunks, groups = len(mean_nD), -(-len(mean_nD) // GROUP)
    # Chunks come before queries, so that the maximum over a group reads consecutive memory.
    score_nQ = q_QD.new_full((groups * GROUP, len(q_QD)), NEVER)
    torch.mm(mean_nD, q_QD.T, out=score_nQ[:chunks])
    highest_gQ = score_nQ.view(groups, GROUP, -1).amax(1)
    _, group_Qm = best(highest_gQ.T.contiguous(), min(take, groups))
    within = torch.arange(GROUP, device=q_QD.device)
    # Sorted by id, so that ties go to the lower id.
    ids_Qx = (group_Qm.sort(1).values[..., None] * GROUP + within).flatten(1)
    score_Qm, index_Qm = best(score_nQ.gather(0, ids_Qx.T).T.contiguous(), take)
    return score_Qm, ids_Qx.gather(1, index_Qm)
