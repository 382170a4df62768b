"""Chunk pooling as an operation of torch, with shapes, gradients and FLOPs registered.

Legend: B rows, K key/value heads, T tokens, D head width, n chunks.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from contextlab.kernels import dispatch
from contextlab.kernels.buffers import wide
from contextlab.kernels.eva_chunk_compress import blocked


def _form(k_BKTD: Tensor) -> ModuleType:
    if not dispatch.use_triton(k_BKTD):
        return blocked
    from contextlab.kernels.eva_chunk_compress import triton

    return triton


@torch.library.custom_op("contextlab::pool_chunks", mutates_args=())
def pool_chunks(
    w_BKnD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, chunk: int, scale: float, features: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """`key_BKnD` (empty with features), `value_BKnD`, and `lse_BKn` for the backward pass."""
    out: tuple[Tensor, Tensor, Tensor] = _form(k_BKTD).forward(w_BKnD, k_BKTD, v_BKTD, chunk, scale, features)
    return out


@pool_chunks.register_fake
def _(w: Tensor, _k: Tensor, _v: Tensor, _chunk: int, _scale: float, features: bool) -> tuple[Tensor, ...]:
    lse_BKn = w.new_empty(w.shape[:3], dtype=wide(w))
    return w.new_empty((0,) if features else w.shape), w.new_empty(w.shape), lse_BKn


@torch.library.custom_op("contextlab::pool_chunks_backward", mutates_args=())
def pool_chunks_backward(
    dkey_BKnD: Tensor,
    dvalue_BKnD: Tensor,
    w_BKnD: Tensor,
    k_BKTD: Tensor,
    v_BKTD: Tensor,
    key_BKnD: Tensor,
    value_BKnD: Tensor,
    lse_BKn: Tensor,
    chunk: int,
    scale: float,
    features: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of directions, keys and values."""
    pooled = (key_BKnD, value_BKnD, lse_BKn)
    gradients: tuple[Tensor, Tensor, Tensor] = _form(k_BKTD).backward(
        dkey_BKnD, dvalue_BKnD, w_BKnD, k_BKTD, v_BKTD, *pooled, chunk, scale, features
    )
    return gradients


@pool_chunks_backward.register_fake
def _(_dkey: Tensor, _dvalue: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    return tuple(x.new_empty(x.shape) for x in inputs[:3])


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.chunk, ctx.scale, ctx.features = inputs
    ctx.save_for_backward(*tensors, *output)


def _gradients(ctx: Any, dkey_BKnD: Tensor, dvalue_BKnD: Tensor, _dlse: Tensor) -> tuple[Tensor | None, ...]:
    shape = (ctx.chunk, ctx.scale, ctx.features)
    gradients = pool_chunks_backward(dkey_BKnD, dvalue_BKnD, *ctx.saved_tensors, *shape)
    return *gradients, None, None, None


pool_chunks.register_autograd(_gradients, setup_context=_save)


def flops(k_BKTD: Tensor, features: bool) -> int:
    """FLOPs of one inner product per token, and of one weighted sum per token and pooled tensor."""
    return (4 if features else 6) * k_BKTD.numel()


@register_flop_formula(torch.ops.contextlab.pool_chunks, get_raw=True)
def _(_w: Tensor, k: Tensor, _v: Tensor, _chunk: int, _scale: float, features: bool, **_kwargs: Any) -> int:
    return flops(k, features)


@register_flop_formula(torch.ops.contextlab.pool_chunks_backward, get_raw=True)
def _(*arguments: Any, **_kwargs: Any) -> int:
    return 2 * flops(arguments[3], arguments[10])
