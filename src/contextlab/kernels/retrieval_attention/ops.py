"""The operation of retrieval attention, with shapes, gradients and FLOPs known to torch.

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
from contextlab.kernels.joint_memory_attention.ops import memory_flops
from contextlab.kernels.retrieval_attention import blocked
from contextlab.kernels.retrieval_attention.inputs import Inputs

LEAVES = tuple(
    map(Inputs._fields.index, ("q_BHTD", "k_BKSD", "v_BKSD", "q_memory_BHTD", "bias_H", "k_BKncD", "v_BKncD"))
)
"""Which of the inputs have a gradient, in the order in which the backward pass gives them."""
BANK = LEAVES[-2:]


def _form(inputs: Inputs) -> ModuleType:
    if not dispatch.use_triton(inputs.q_BHTD, inputs.k_BKncD):
        return blocked
    from contextlab.kernels.retrieval_attention import triton

    return triton


@torch.library.custom_op("contextlab::retrieval_attention", mutates_args=())
def retrieval_attention(
    q_BHTD: Tensor,
    k_BKSD: Tensor,
    v_BKSD: Tensor,
    mask_BTS: Tensor,
    q_memory_BHTD: Tensor,
    k_BKncD: Tensor,
    v_BKncD: Tensor,
    ids_BHTm: Tensor,
    retrieved_BHTm: Tensor,
    bias_H: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """`out_BHTD`, and `lse_BHT` for the backward pass."""
    checks.ids(ids_BHTm, retrieved_BHTm, k_BKncD.shape[2])
    local = (q_BHTD, k_BKSD, v_BKSD, mask_BTS)
    inputs = Inputs(*local, q_memory_BHTD, k_BKncD, v_BKncD, ids_BHTm, retrieved_BHTm, bias_H)
    out: tuple[Tensor, Tensor] = _form(inputs).forward(inputs, scale)
    return out


@retrieval_attention.register_fake
def _(q_BHTD: Tensor, *_args: Any) -> tuple[Tensor, Tensor]:
    return q_BHTD.new_empty(q_BHTD.shape), q_BHTD.new_empty(q_BHTD.shape[:3], dtype=wide(q_BHTD))


@torch.library.custom_op("contextlab::retrieval_attention_backward", mutates_args=())
def retrieval_attention_backward(
    dout_BHTD: Tensor,
    q_BHTD: Tensor,
    k_BKSD: Tensor,
    v_BKSD: Tensor,
    mask_BTS: Tensor,
    q_memory_BHTD: Tensor,
    k_BKncD: Tensor,
    v_BKncD: Tensor,
    ids_BHTm: Tensor,
    retrieved_BHTm: Tensor,
    bias_H: Tensor,
    out_BHTD: Tensor,
    lse_BHT: Tensor,
    scale: float,
    into_bank: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of queries, keys, values, the memory's queries, the bias, and the bank (empty unless `into_bank`)."""
    local = (q_BHTD, k_BKSD, v_BKSD, mask_BTS)
    inputs = Inputs(*local, q_memory_BHTD, k_BKncD, v_BKncD, ids_BHTm, retrieved_BHTm, bias_H)
    dq, dk, dv, dq_memory, dbias, dbank_k, dbank_v = _form(inputs).backward(
        dout_BHTD, inputs, out_BHTD, lse_BHT, scale, into_bank
    )
    return dq, dk, dv, dq_memory, dbias, dbank_k, dbank_v


@retrieval_attention_backward.register_fake
def _(_dout: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    *rest, bank_k, bank_v = (inputs[i] for i in LEAVES)
    bank = (x.new_empty(x.shape if inputs[-1] else (0,)) for x in (bank_k, bank_v))
    return (*(x.new_empty(x.shape) for x in rest), *bank)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.scale = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, dout_BHTD: Tensor | None, _dlse: None) -> tuple[Tensor | None, ...]:
    gradients: list[Tensor | None] = [None] * (len(Inputs._fields) + 1)
    if dout_BHTD is None:
        return tuple(gradients)
    into_bank = any(ctx.needs_input_grad[i] for i in BANK)
    leaf_gradients = retrieval_attention_backward(dout_BHTD, *ctx.saved_tensors, ctx.scale, into_bank)
    for i, gradient in zip(LEAVES, leaf_gradients, strict=True):
        gradients[i] = gradient if into_bank or i not in BANK else None
    return tuple(gradients)


retrieval_attention.register_autograd(_gradients, setup_context=_save)


def local_flops(q_BHTD: Tensor, mask_BTS: Tensor) -> int:
    """FLOPs of the local part: every visible (query, key) pair, one inner product and one weighted sum."""
    rows, heads, _, width = q_BHTD.shape
    pairs = dispatch.total(mask_BTS > torch.finfo(mask_BTS.dtype).min) * (rows // max(mask_BTS.shape[0], 1))
    return pairs * heads * 4 * width


@register_flop_formula(torch.ops.contextlab.retrieval_attention, get_raw=True)
def retrieval_attention_flops(*arguments: Any, **_kwargs: Any) -> int:
    """FLOPs of both parts; multiply-add = 2."""
    inputs = Inputs(*arguments[: len(Inputs._fields)])
    return local_flops(inputs.q_BHTD, inputs.mask_BTS) + memory_flops(inputs.k_BKncD, inputs.retrieved_BHTm)


@register_flop_formula(torch.ops.contextlab.retrieval_attention_backward, get_raw=True)
def _(_dout: Tensor, *arguments: Any, **_kwargs: Any) -> int:
    inputs, into_bank = Inputs(*arguments[: len(Inputs._fields)]), arguments[-1]
    memory = memory_flops(inputs.k_BKncD, inputs.retrieved_BHTm)
    return 2 * local_flops(inputs.q_BHTD, inputs.mask_BTS) + (2 if into_bank else 1) * memory
