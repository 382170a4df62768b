"""Attention in which queries have another position for the first keys, the sinks (StreamingLLM, Xiao et al. 2024).

Legend: B rows, H query heads, K key/value heads, T queries, S keys, D width of queries and keys, E width of values.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from contextlab.kernels import checks, dispatch
from contextlab.kernels.sink_attention import blocked, reference

__all__ = ["sink_attention"]


def sink_attention(
    q_BHTD: Tensor, q_sink_BHTD: Tensor, k_BKSD: Tensor, v_BKSE: Tensor, seen_BTS: Tensor, sinks: int, scale: float
) -> Tensor:
    """Softmax attention over all visible keys; `q_sink` attends to the first `sinks` keys.

    Args:
        q_BHTD: queries for the keys after the sinks.
        q_sink_BHTD: the same queries at the position that they have for the sinks.
        k_BKSD: keys; query heads share key heads in consecutive groups.
        v_BKSE: values.
        seen_BTS: which keys each query sees, at least one; B may be 1.
        sinks: number of sinks, the first keys; all keys are sinks when there are fewer.
        scale: factor of the logits.

    Returns:
        `out_BHTE`; where gradients are wanted it is computed in plain torch.

    Raises:
        ValueError, TypeError: when shapes, devices or types do not fit.
    """
    floating = {"q_BHTD": q_BHTD, "q_sink_BHTD": q_sink_BHTD, "k_BKSD": k_BKSD, "v_BKSE": v_BKSE}
    shared = seen_BTS.dim() == 3 and seen_BTS.shape[0] == 1
    checks.heads(checks.shapes(**floating, **{"seen_1TS" if shared else "seen_BTS": seen_BTS}))
    checks.one_float_type(**floating)
    checks.of_type(torch.bool, seen_BTS=seen_BTS)
    if sinks < 0:
        raise ValueError(f"There cannot be {sinks} sinks: give 0 or more.")
    if torch.is_grad_enabled() and any(x.requires_grad for x in floating.values()):
        return reference.with_graph(q_BHTD, q_sink_BHTD, k_BKSD, v_BKSE, seen_BTS, sinks, scale)
    out_BHTE: Tensor = _sink_attention(q_BHTD, q_sink_BHTD, k_BKSD, v_BKSE, seen_BTS, sinks, scale)
    return out_BHTE


@torch.library.custom_op("contextlab::sink_attention", mutates_args=())
def _sink_attention(
    q_BHTD: Tensor, q_sink_BHTD: Tensor, k_BKSD: Tensor, v_BKSE: Tensor, seen_BTS: Tensor, sinks: int, scale: float
) -> Tensor:
    attend = blocked.sink_attention if blocked.fits(q_BHTD, v_BKSE) else reference.sink_attention
    return attend(q_BHTD, q_sink_BHTD, k_BKSD, v_BKSE, seen_BTS, sinks, scale)


@_sink_attention.register_fake
def _(q_BHTD: Tensor, _q_sink: Tensor, _k: Tensor, v_BKSE: Tensor, *_args: Any) -> Tensor:
    return q_BHTD.new_empty((*q_BHTD.shape[:3], v_BKSE.shape[3]))


@register_flop_formula(torch.ops.contextlab.sink_attention, get_raw=True)
def sink_attention_flops(
    q_BHTD: Tensor, _q: Tensor, _k: Tensor, v_BKSE: Tensor, seen_BTS: Tensor, *_args: Any, **_kwargs: Any
) -> int:
    """Visible (query, key) pairs, each one inner product and one weighted sum; multiply-add = 2."""
    rows, heads, _, width = q_BHTD.shape
    pairs = dispatch.total(seen_BTS) * (rows // max(seen_BTS.shape[0], 1))
    return pairs * heads * 2 * (width + v_BKSE.shape[3])
