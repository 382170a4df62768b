"""One softmax over local keys and chunk summaries (EVA, Zheng et al. 2023, section 4; EVALM, section 3).

Legend: B rows, H query heads, K key/value heads, T queries, S local keys, n chunks, D head width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from contextlab.kernels.eva_attention.blocked import eva_attention as in_parts


def eva_attention(
    q_BHTD: Tensor,
    k_BKSD: Tensor,
    v_BKSD: Tensor,
    chunk_k_BKnD: Tensor,
    chunk_v_BKnD: Tensor,
    bias: Tensor | None,
    counts_BT: Tensor | None,
    chunk_bias_H: Tensor | None,
    scale: float,
) -> Tensor:
    """Attention of every query over local keys and the chunks it sees; a chunk counts as one token.

    Args:
        q_BHTD: queries; consecutive groups of heads share a key head.
        k_BKSD: local keys.
        v_BKSD: local values.
        chunk_k_BKnD: keys of chunks, oldest first.
        chunk_v_BKnD: values of chunks.
        bias: added to the local logits, broadcastable to BHTS, -inf where a key is not seen; every query must see one.
            None for queries that are the last T of the local keys and see all that is not behind them.
        counts_BT: chunks that each query sees, the first so many; all when None.
        chunk_bias_H: added to the logits of chunks; heads with -inf see none.
        scale: factor of the logits.

    Returns:
        `out_BHTD`.
    """
    given = (q_BHTD, k_BKSD, v_BKSD, chunk_k_BKnD, chunk_v_BKnD, bias, counts_BT, chunk_bias_H)
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in given):
        return in_parts(*given, scale)
    out_BHTD: Tensor = _forward(*given, scale)
    return out_BHTD


@torch.library.custom_op("contextlab::eva_attention", mutates_args=())
def _forward(
    q_BHTD: Tensor,
    k_BKSD: Tensor,
    v_BKSD: Tensor,
    chunk_k_BKnD: Tensor,
    chunk_v_BKnD: Tensor,
    bias: Tensor | None,
    counts_BT: Tensor | None,
    chunk_bias_H: Tensor | None,
    scale: float,
) -> Tensor:
    with torch.no_grad():
        return in_parts(q_BHTD, k_BKSD, v_BKSD, chunk_k_BKnD, chunk_v_BKnD, bias, counts_BT, chunk_bias_H, scale)


@_forward.register_fake
def _(q_BHTD: Tensor, *_args: Any) -> Tensor:
    return torch.empty_like(q_BHTD)


@register_flop_formula(torch.ops.contextlab.eva_attention, get_raw=True)
def eva_attention_flops(
    q_BHTD: Tensor,
    k_BKSD: Tensor,
    _v: Tensor,
    chunk_k_BKnD: Tensor,
    _chunk_v: Tensor,
    bias: Tensor | None,
    counts_BT: Tensor | None,
    *_args: Any,
    **_kwargs: Any,
) -> int:
    """Visible (query, key) pairs, each one inner product and one weighted sum; multiply-add = 2."""
    rows, heads, length, width = q_BHTD.shape
    keys, chunks = k_BKSD.shape[2], chunk_k_BKnD.shape[2]
    if bias is None:
        local = rows * heads * (length * (keys - length) + length * (length + 1) // 2)
    else:
        local = rows * heads * length * keys * int((bias > float("-inf")).sum()) // bias.numel()
    visible = rows * length * chunks
    if counts_BT is not None:
        visible = int(counts_BT.clamp(max=chunks).sum()) * (rows // counts_BT.shape[0])
    return (local + heads * visible) * 4 * width
