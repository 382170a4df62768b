"""Attention in which the first keys are met at a position of their own (StreamingLLM, Xiao et al. 2024)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from contextlab.kernels.sink_attention.reference import sink_attention as reference


@torch.library.custom_op("contextlab::sink_attention", mutates_args=())
def sink_attention(
    q_BHTD: Tensor, q_sink_BHTD: Tensor, k_BKSD: Tensor, v_BKSD: Tensor, seen_BTS: Tensor, sinks: int, scale: float
) -> Tensor:
    """Softmax attention over all visible keys, the first `sinks` of them met by `q_sink`; for inference.

    Args:
        q_BHTD: queries, as the keys behind the sinks meet them.
        q_sink_BHTD: the same queries as the sinks meet them.
        k_BKSD: keys; query heads share key heads in consecutive groups.
        v_BKSD: values.
        seen_BTS: which keys each query sees; one row may stand for all.
        sinks: number of keys at the beginning that `q_sink` meets.
        scale: factor of the logits.

    Returns:
        `out_BHTD`.
    """
    return reference(q_BHTD, q_sink_BHTD, k_BKSD, v_BKSD, seen_BTS, sinks, scale)


@sink_attention.register_fake
def _(q_BHTD: Tensor, *_args: Any) -> Tensor:
    return torch.empty_like(q_BHTD)


@register_flop_formula(torch.ops.contextlab.sink_attention, get_raw=True)
def sink_attention_flops(
    q_BHTD: Tensor, _q: Tensor, _k: Tensor, v_BKSD: Tensor, seen_BTS: Tensor, *_args: Any, **_kwargs: Any
) -> int:
    """Visible (query, key) pairs, each one inner product and one weighted sum; multiply-add = 2."""
    rows, heads, _, width = q_BHTD.shape
    pairs = int(seen_BTS.sum()) * (rows // seen_BTS.shape[0])
    return pairs * heads * 2 * (width + v_BKSD.shape[-1])
