"""Sink attention as an operation of torch, with shapes, gradients and FLOPs registered.

Legend: B rows, H query heads, K key/value heads, T queries, S keys, D width of queries and keys, E width of values.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from contextlab.kernels import dispatch
from contextlab.kernels.buffers import wide
from contextlab.kernels.sink_attention import blocked, reference


@torch.library.custom_op("contextlab::sink_attention", mutates_args=())
def sink_attention(
    q_BHTD: Tensor, q_sink_BHTD: Tensor, k_BKSD: Tensor, v_BKSE: Tensor, seen_BTS: Tensor, sinks: int, scale: float
) -> tuple[Tensor, Tensor]:
    """`out_BHTE`, and `lse_BHT` for the backward pass."""
    attend = blocked.forward if blocked.fits(q_BHTD, v_BKSE) else reference.with_lse
    return attend(q_BHTD, q_sink_BHTD, k_BKSD, v_BKSE, seen_BTS, sinks, scale)


@sink_attention.register_fake
def _(q_BHTD: Tensor, _q_sink: Tensor, _k: Tensor, v_BKSE: Tensor, *_args: Any) -> tuple[Tensor, Tensor]:
    shape = q_BHTD.shape[:3]
    return q_BHTD.new_empty((*shape, v_BKSE.shape[3])), q_BHTD.new_empty(shape, dtype=wide(q_BHTD))


@torch.library.custom_op("contextlab::sink_attention_backward", mutates_args=())
def sink_attention_backward(
    dout_BHTD: Tensor,
    q_BHTD: Tensor,
    q_sink_BHTD: Tensor,
    k_BKSD: Tensor,
    v_BKSD: Tensor,
    seen_BTS: Tensor,
    out_BHTD: Tensor,
    lse_BHT: Tensor,
    sinks: int,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of both queries, keys and values."""
    inputs = (q_BHTD, q_sink_BHTD, k_BKSD, v_BKSD, seen_BTS)
    return blocked.backward(dout_BHTD, *inputs, out_BHTD, lse_BHT, sinks, scale)


@sink_attention_backward.register_fake
def _(_dout: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    return tuple(x.new_empty(x.shape) for x in inputs[:4])


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.sinks, ctx.scale = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, dout_BHTD: Tensor | None, _dlse: None) -> tuple[Tensor | None, ...]:
    if dout_BHTD is None:
        return (None,) * 7
    return *sink_attention_backward(dout_BHTD, *ctx.saved_tensors, ctx.sinks, ctx.scale), None, None, None


sink_attention.register_autograd(_gradients, setup_context=_save)


@register_flop_formula(torch.ops.contextlab.sink_attention, get_raw=True)
def sink_attention_flops(
    q_BHTD: Tensor, _q: Tensor, _k: Tensor, v_BKSE: Tensor, seen_BTS: Tensor, *_args: Any, **_kwargs: Any
) -> int:
    """Visible (query, key) pairs, each one inner product and one weighted sum; multiply-add = 2."""
    rows, heads, _, width = q_BHTD.shape
    pairs = dispatch.total(seen_BTS) * (rows // max(seen_BTS.shape[0], 1))
    return pairs * heads * 2 * (width + v_BKSE.shape[3])


@register_flop_formula(torch.ops.contextlab.sink_attention_backward, get_raw=True)
def _(_dout: Tensor, *arguments: Any, **_kwargs: Any) -> int:
    return 2 * sink_attention_flops(*arguments)
