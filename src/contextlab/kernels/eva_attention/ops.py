"""EVA attention as an operation of torch, with shapes, gradients and FLOPs registered.

Legend: B rows, H query heads, K key/value heads, T queries, S local keys, n chunks, D head width.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from contextlab.kernels import dispatch
from contextlab.kernels.buffers import wide
from contextlab.kernels.eva_attention import blocked


def _form(q_BHTD: Tensor, bias: Tensor | None) -> ModuleType:
    if not dispatch.use_triton(q_BHTD) or bias is not None:
        return blocked
    from contextlab.kernels.eva_attention import triton

    return triton


@torch.library.custom_op("contextlab::eva_attention", mutates_args=())
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
    window: int,
    overlap: int,
) -> tuple[Tensor, Tensor]:
    """`out_BHTD`, and `lse_BHT` for the backward pass; `overlap` in tokens."""
    inputs = (q_BHTD, k_BKSD, v_BKSD, chunk_k_BKnD, chunk_v_BKnD, bias, counts_BT, chunk_bias_H)
    out: tuple[Tensor, Tensor] = _form(q_BHTD, bias).forward(*inputs, scale, window, overlap)
    return out


@eva_attention.register_fake
def _(q_BHTD: Tensor, *_args: Any) -> tuple[Tensor, Tensor]:
    return q_BHTD.new_empty(q_BHTD.shape), q_BHTD.new_empty(q_BHTD.shape[:3], dtype=wide(q_BHTD))


@torch.library.custom_op("contextlab::eva_attention_backward", mutates_args=())
def eva_attention_backward(
    dout_BHTD: Tensor,
    q_BHTD: Tensor,
    k_BKSD: Tensor,
    v_BKSD: Tensor,
    chunk_k_BKnD: Tensor,
    chunk_v_BKnD: Tensor,
    bias: Tensor | None,
    counts_BT: Tensor | None,
    chunk_bias_H: Tensor | None,
    out_BHTD: Tensor,
    lse_BHT: Tensor,
    scale: float,
    window: int,
    overlap: int,
    into_bias: bool,
    into_chunk_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of queries, keys, values, chunks' keys and values, and of both biases (empty without `into_`)."""
    inputs = (q_BHTD, k_BKSD, v_BKSD, chunk_k_BKnD, chunk_v_BKnD, bias, counts_BT, chunk_bias_H, out_BHTD, lse_BHT)
    options = (scale, window, overlap, into_bias, into_chunk_bias)
    gradients: tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
    gradients = _form(q_BHTD, bias).backward(dout_BHTD, *inputs, *options)
    return gradients


@eva_attention_backward.register_fake
def _(_dout: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    q, bias, chunk_bias, (into_bias, into_chunk_bias) = inputs[0], inputs[5], inputs[7], inputs[-2:]
    biases = ((bias, into_bias), (chunk_bias, into_chunk_bias))
    of_biases = (x.new_empty(x.shape) if needed else _nothing(q, x) for x, needed in biases)
    return (*(x.new_empty(x.shape) for x in inputs[:5]), *of_biases)


def _nothing(q_BHTD: Tensor, like: Tensor | None) -> Tensor:
    return q_BHTD.new_empty(0, dtype=wide(q_BHTD) if like is None else like.dtype)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.scale, ctx.window, ctx.overlap = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, dout_BHTD: Tensor | None, _dlse: None) -> tuple[Tensor | None, ...]:
    if dout_BHTD is None:
        return (None,) * 11
    needed = ctx.needs_input_grad[5], ctx.needs_input_grad[7]
    shape = (ctx.scale, ctx.window, ctx.overlap)
    *five, dbias, dchunk_bias_H = eva_attention_backward(dout_BHTD, *ctx.saved_tensors, *shape, *needed)
    biases = (dbias if needed[0] else None, None, dchunk_bias_H if needed[1] else None)
    return (*five, *biases, None, None, None)


eva_attention.register_autograd(_gradients, setup_context=_save)


def flops(
    q_BHTD: Tensor,
    k_BKSD: Tensor,
    chunk_k_BKnD: Tensor,
    bias: Tensor | None,
    counts_BT: Tensor | None,
    window: int,
    overlap: int,
) -> int:
    """FLOPs of every visible (query, key) pair: one inner product and one weighted sum; multiply-add = 2."""
    rows, heads, length, width = q_BHTD.shape
    keys, chunks = k_BKSD.shape[2], chunk_k_BKnD.shape[2]
    if bias is None:
        local = rows * heads * _local_pairs(length, keys, window, overlap)
    else:
        local = rows * heads * length * keys * dispatch.total(bias > float("-inf")) // bias.numel()
    visible = rows * length * chunks
    if counts_BT is not None:
        visible = dispatch.total(counts_BT.clamp(0, chunks), most=chunks)
    return (local + heads * visible) * 4 * width


def _local_pairs(queries: int, keys: int, window: int, overlap: int) -> int:
    """Visible pairs of the last `queries` tokens of `keys`."""
    pairs, first = 0, keys - queries
    for begin in range(first // window * window, keys, window):
        start, end = max(begin, first), min(begin + window, keys)
        before = start - max(begin - overlap, 0)
        pairs += (end - start) * before + (end - start) * (end - start + 1) // 2
    return pairs


@register_flop_formula(torch.ops.contextlab.eva_attention, get_raw=True)
def _(q: Tensor, k: Tensor, _v: Tensor, chunk_k: Tensor, _chunk_v: Tensor, *rest: Any, **_kwargs: Any) -> int:
    bias, counts, _, _, window, overlap = rest
    return flops(q, k, chunk_k, bias, counts, window, overlap)


@register_flop_formula(torch.ops.contextlab.eva_attention_backward, get_raw=True)
def _(_dout: Tensor, q: Tensor, k: Tensor, _v: Tensor, chunk_k: Tensor, *rest: Any, **_kwargs: Any) -> int:
    _, bias, counts, _, _, _, _, window, overlap, *_wanted = rest
    return 2 * flops(q, k, chunk_k, bias, counts, window, overlap)
