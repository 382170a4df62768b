"""Attention in which queries have another position for the first keys, the sinks (StreamingLLM, Xiao et al. 2024).

Legend: B rows, H query heads, K key/value heads, T queries, S keys, D width of queries and keys, E width of values.
"""

from __future__ import annotations

import torch
from torch import Tensor

from contextlab.kernels import checks
from contextlab.kernels.sink_attention import blocked, ops, reference
from contextlab.kernels.sink_attention.ops import sink_attention_flops

__all__ = ["sink_attention", "sink_attention_flops"]


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
        `out_BHTE`; for values of another width than keys it is computed in plain torch.

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
    inputs = (q_BHTD, q_sink_BHTD, k_BKSD, v_BKSE, seen_BTS, sinks, scale)
    learning = torch.is_grad_enabled() and any(x.requires_grad for x in floating.values())
    if learning and not blocked.fits(q_BHTD, v_BKSE):
        return reference.with_graph(*inputs)
    out_BHTE: Tensor = ops.sink_attention(*inputs)[0]
    return out_BHTE
