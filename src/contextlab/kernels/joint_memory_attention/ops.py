"""Joint memory attention as two operations of torch, with shapes, gradients and FLOPs registered.

Legend: B rows, H query heads, K key/value heads, T queries, S local keys, D head width, n chunks of the bank, c tokens
of a chunk, m chunks retrieved.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from contextlab.kernels import checks, dispatch
from contextlab.kernels.buffers import wide
from contextlab.kernels.joint_memory_attention import blocked


def _form(*floating: Tensor) -> ModuleType:
    if not dispatch.use_triton(*floating):
        return blocked
    from contextlab.kernels.joint_memory_attention import triton

    return triton


@torch.library.custom_op("contextlab::local_attention", mutates_args=())
def local_attention(
    q_BHTD: Tensor, k_BKSD: Tensor, v_BKSD: Tensor, slopes_H: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """`out_BHTD`, and `lse_BHT` for the backward pass."""
    out: tuple[Tensor, Tensor] = _form(q_BHTD).local_forward(q_BHTD, k_BKSD, v_BKSD, slopes_H, scale)
    return out


@local_attention.register_fake
def _(q_BHTD: Tensor, *_args: Any) -> tuple[Tensor, Tensor]:
    return q_BHTD.new_empty(q_BHTD.shape), q_BHTD.new_empty(q_BHTD.shape[:3], dtype=wide(q_BHTD))


@torch.library.custom_op("contextlab::local_attention_backward", mutates_args=())
def local_attention_backward(
    dout_BHTD: Tensor,
    q_BHTD: Tensor,
    k_BKSD: Tensor,
    v_BKSD: Tensor,
    out_BHTD: Tensor,
    lse_BHT: Tensor,
    slopes_H: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values."""
    gradients: tuple[Tensor, Tensor, Tensor] = _form(q_BHTD).local_backward(
        dout_BHTD, q_BHTD, k_BKSD, v_BKSD, out_BHTD, lse_BHT, slopes_H, scale
    )
    return gradients


@local_attention_backward.register_fake
def _(_dout: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    return tuple(x.new_empty(x.shape) for x in inputs[:3])


def _save_local(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.scale = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.set_materialize_grads(False)


def _local_gradients(ctx: Any, dout_BHTD: Tensor | None, _dlse: None) -> tuple[Tensor | None, ...]:
    if dout_BHTD is None:
        return (None,) * 5
    q_BHTD, k_BKSD, v_BKSD, slopes_H, out_BHTD, lse_BHT = ctx.saved_tensors
    dq, dk, dv = local_attention_backward(dout_BHTD, q_BHTD, k_BKSD, v_BKSD, out_BHTD, lse_BHT, slopes_H, ctx.scale)
    return dq, dk, dv, None, None


local_attention.register_autograd(_local_gradients, setup_context=_save_local)


@torch.library.custom_op("contextlab::fuse_memory", mutates_args=())
def fuse_memory(
    local_BHTD: Tensor,
    q_BHTD: Tensor,
    k_BKncD: Tensor,
    v_BKncD: Tensor,
    ids_BHTm: Tensor,
    retrieved_BHTm: Tensor,
    gate_H: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """`out_BHTD`, and `memory_BHTD` and `lse_BHT` for the backward pass."""
    checks.ids(ids_BHTm, retrieved_BHTm, k_BKncD.shape[2])
    out: tuple[Tensor, Tensor, Tensor] = _form(q_BHTD, k_BKncD).memory_forward(
        local_BHTD, q_BHTD, k_BKncD, v_BKncD, ids_BHTm, retrieved_BHTm, gate_H, scale
    )
    return out


@fuse_memory.register_fake
def _(local_BHTD: Tensor, *_args: Any) -> tuple[Tensor, Tensor, Tensor]:
    shape = local_BHTD.shape
    lse_BHT = local_BHTD.new_empty(shape[:3], dtype=wide(local_BHTD))
    return local_BHTD.new_empty(shape), local_BHTD.new_empty(shape), lse_BHT


@torch.library.custom_op("contextlab::fuse_memory_backward", mutates_args=())
def fuse_memory_backward(
    dout_BHTD: Tensor,
    local_BHTD: Tensor,
    q_BHTD: Tensor,
    k_BKncD: Tensor,
    v_BKncD: Tensor,
    ids_BHTm: Tensor,
    retrieved_BHTm: Tensor,
    gate_H: Tensor,
    memory_BHTD: Tensor,
    lse_BHT: Tensor,
    scale: float,
    into_bank: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of the local part, queries, gate, and the bank's keys and values (empty unless `into_bank`)."""
    gradients: tuple[Tensor, Tensor, Tensor, Tensor, Tensor] = _form(q_BHTD, k_BKncD).memory_backward(
        dout_BHTD,
        local_BHTD,
        q_BHTD,
        k_BKncD,
        v_BKncD,
        ids_BHTm,
        retrieved_BHTm,
        gate_H,
        memory_BHTD,
        lse_BHT,
        scale,
        into_bank,
    )
    return gradients


@fuse_memory_backward.register_fake
def _(
    _dout: Tensor, local: Tensor, q: Tensor, k: Tensor, v: Tensor, _i: Any, _f: Any, gate: Tensor, *rest: Any
) -> tuple[Tensor, ...]:
    bank = (x.new_empty(x.shape if rest[-1] else (0,)) for x in (k, v))
    return (*(x.new_empty(x.shape) for x in (local, q, gate)), *bank)


def _save_memory(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.scale = inputs
    ctx.save_for_backward(*tensors, *output[1:])
    ctx.set_materialize_grads(False)


def _memory_gradients(ctx: Any, dout_BHTD: Tensor | None, _dmemory: None, _dlse: None) -> tuple[Tensor | None, ...]:
    if dout_BHTD is None:
        return (None,) * 8
    into_bank = ctx.needs_input_grad[2] or ctx.needs_input_grad[3]
    dlocal, dq, dgate, dk, dv = fuse_memory_backward(dout_BHTD, *ctx.saved_tensors, ctx.scale, into_bank)
    return dlocal, dq, dk if into_bank else None, dv if into_bank else None, None, None, dgate, None


fuse_memory.register_autograd(_memory_gradients, setup_context=_save_memory)


def local_flops(q_BHTD: Tensor, k_BKSD: Tensor) -> int:
    """FLOPs of the local part: every visible (query, key) pair, one inner product and one weighted sum."""
    rows, heads, queries, width = q_BHTD.shape
    keys = k_BKSD.shape[2]
    return rows * heads * (queries * (keys - queries) + queries * (queries + 1) // 2) * 4 * width


def memory_flops(k_BKncD: Tensor, retrieved_BHTm: Tensor) -> int:
    """FLOPs of the memory part: every retrieved token, one inner product and one weighted sum."""
    return dispatch.total(retrieved_BHTm) * k_BKncD.shape[3] * 4 * k_BKncD.shape[4]


@register_flop_formula(torch.ops.contextlab.local_attention, get_raw=True)
def _(q: Tensor, k: Tensor, *_args: Any, **_kwargs: Any) -> int:
    return local_flops(q, k)


@register_flop_formula(torch.ops.contextlab.local_attention_backward, get_raw=True)
def _(_dout: Tensor, q: Tensor, k: Tensor, *_args: Any, **_kwargs: Any) -> int:
    return 2 * local_flops(q, k)


@register_flop_formula(torch.ops.contextlab.fuse_memory, get_raw=True)
def _(_local: Tensor, _q: Tensor, k: Tensor, _v: Tensor, _ids: Tensor, retrieved: Tensor, *_: Any, **_k: Any) -> int:
    return memory_flops(k, retrieved)


@register_flop_formula(torch.ops.contextlab.fuse_memory_backward, get_raw=True)
def _(*arguments: Any, **_kwargs: Any) -> int:
    k, retrieved, into_bank = arguments[3], arguments[6], arguments[11]
    return (2 if into_bank else 1) * memory_flops(k, retrieved)
