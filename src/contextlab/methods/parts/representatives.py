"""The tokens that stand for a chunk in a search: those to which the tokens after them attended most (InfLLM).

The score of a token is the sum of the inner products of its key with the queries of the next tokens, in every key head
over the query heads that share it. Divided by their number it is the representative score of Xiao et al. (2024).

Legend: B rows, H query heads, K key/value heads, T queries of a pass, S keys, D head width, n chunks, c tokens of a
chunk, r representatives.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from contextlab.kernels.buffers import wide


def of_key_heads(q_BHTD: Tensor, kv_heads: int) -> Tensor:
    """`q_BKTD`: for every key head the sum of the queries that share it, without a gradient."""
    q_BKGTD: Tensor = q_BHTD.detach().to(wide(q_BHTD)).unflatten(1, (kv_heads, -1))
    return q_BKGTD.sum(2)


def products(
    q_BKTD: Tensor, k_BKSD: Tensor, lengths_B: Tensor, query_BT: Tensor, key_BS: Tensor, following: int
) -> Tensor:
    """`score_BKS1`: the sums of inner products that the queries of a pass add to the scores of keys.

    Args:
        q_BKTD: as `of_key_heads` gives them, rotated.
        k_BKSD: keys that they may have seen, rotated.
        lengths_B: queries of each row that are real, the first ones.
        query_BT: positions of the queries, which follow each other.
        key_BS: positions of the keys.
        following: tokens after a key whose queries count.
    """
    length = q_BKTD.shape[2]
    real_BT = torch.arange(length, device=q_BKTD.device) < lengths_B.to(q_BKTD.device)[:, None]
    # Inner products are linear: a key meets the sum of its queries, a difference of two sums from the first one on.
    sums_BKtD = pad(q_BKTD.masked_fill(~real_BT[:, None, :, None], 0.0).cumsum(2), (0, 0, 1, 0))

    def until(position_BS: Tensor) -> Tensor:
        count_BS = (position_BS - query_BT[:, :1] + 1).clamp(0, length)
        return sums_BKtD.gather(2, count_BS[:, None, :, None].expand(*k_BKSD.shape))

    sum_BKSD = until(key_BS + following) - until(key_BS)
    return (sum_BKSD[..., None, :] @ k_BKSD.detach().to(sum_BKSD.dtype)[..., None])[..., 0]


def mean_of_best(k_BKncD: Tensor, score_BKnc1: Tensor, most: int) -> Tensor:
    """`mean_BKnD`: of every chunk the mean of the `most` keys with the highest scores; ties go to the earlier key."""
    ranked_BKnc1 = score_BKnc1.sort(dim=3, descending=True, stable=True).indices
    index_BKnrD = ranked_BKnc1[:, :, :, :most].expand(*k_BKncD.shape[:3], -1, k_BKncD.shape[4])
    return k_BKncD.gather(3, index_BKnrD).mean(3)
