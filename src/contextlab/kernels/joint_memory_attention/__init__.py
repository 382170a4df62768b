"""Local attention and attention over retrieved chunks, fused per head (LongMem, section 2.3).

Legend: B rows, H query heads, K key/value heads, T queries, S local keys, D head width, n chunks of the bank, c tokens
of a chunk, m chunks retrieved. Query heads share key heads in consecutive groups.
"""

from __future__ import annotations

import torch
from torch import Tensor

from contextlab.kernels import checks, dispatch
from contextlab.kernels.joint_memory_attention import ops, reference

__all__ = ["fuse_memory", "joint_memory_attention", "local_attention"]


def joint_memory_attention(
    q_BHTD: Tensor,
    k_BKSD: Tensor,
    v_BKSD: Tensor,
    q_memory_BHTD: Tensor,
    k_BKncD: Tensor,
    v_BKncD: Tensor,
    ids_BHTm: Tensor,
    retrieved_BHTm: Tensor,
    gate_H: Tensor,
    *,
    scale: float,
    slopes_H: Tensor | None = None,
) -> Tensor:
    """Two softmaxes, one over the local keys and one over the retrieved tokens, mixed by a gate per head.

    Args:
        q_BHTD: queries for the local keys (with RoPE, where the model has it): the last T of the S tokens.
        k_BKSD: local keys; query t sees the first S - T + t + 1.
        v_BKSD: local values.
        q_memory_BHTD: queries for the bank, without RoPE.
        k_BKncD: keys of the bank, of any floating-point type; read in place.
        v_BKncD: values of the bank.
        ids_BHTm: ids of retrieved chunks, int64. On a CPU an id that the bank lacks is an error; on a GPU, where the
            check would wait for the device, it counts as not retrieved.
        retrieved_BHTm: false where an id stands for no chunk and may have any value. A query without any chunk has
            the local attention as its output, without the gate.
        gate_H: gate before the sigmoid, which is the weight of the memory.
        scale: factor of the logits.
        slopes_H: ALiBi slopes of the local part; they get no gradient.

    Returns:
        `out_BHTD`.

    Raises:
        ValueError, TypeError: when shapes, devices, types or ids do not fit.
    """
    local_BHTD = local_attention(q_BHTD, k_BKSD, v_BKSD, scale=scale, slopes_H=slopes_H)
    return fuse_memory(local_BHTD, q_memory_BHTD, k_BKncD, v_BKncD, ids_BHTm, retrieved_BHTm, gate_H, scale=scale)


def local_attention(
    q_BHTD: Tensor, k_BKSD: Tensor, v_BKSD: Tensor, *, scale: float, slopes_H: Tensor | None = None
) -> Tensor:
    """The local part alone; arguments as in `joint_memory_attention`."""
    optional = {} if slopes_H is None else {"slopes_H": slopes_H}
    sizes = checks.shapes(q_BHTD=q_BHTD, k_BKSD=k_BKSD, v_BKSD=v_BKSD, **optional)
    checks.heads(sizes)
    checks.one_float_type(q_BHTD=q_BHTD, k_BKSD=k_BKSD, v_BKSD=v_BKSD)
    if sizes["T"] > sizes["S"]:
        raise ValueError(f"There are {sizes['T']} queries but {sizes['S']} keys: give every query its own key.")
    if 0 in q_BHTD.shape:
        return q_BHTD
    if dispatch.forced_form() == "reference":
        return reference.local_attention(q_BHTD, k_BKSD, v_BKSD, slopes_H, scale)
    out_BHTD: Tensor = ops.local_attention(q_BHTD, k_BKSD, v_BKSD, slopes_H, scale)[0]
    return out_BHTD


def fuse_memory(
    local_BHTD: Tensor,
    q_BHTD: Tensor,
    k_BKncD: Tensor,
    v_BKncD: Tensor,
    ids_BHTm: Tensor,
    retrieved_BHTm: Tensor,
    gate_H: Tensor,
    *,
    scale: float,
) -> Tensor:
    """The memory part, mixed with a local part that was computed elsewhere.

    Args:
        local_BHTD: the local attention's output.
        q_BHTD: queries for the bank, without RoPE.
        k_BKncD, v_BKncD, ids_BHTm, retrieved_BHTm, gate_H, scale: as in `joint_memory_attention`.

    Returns:
        `out_BHTD`.

    Raises:
        ValueError, TypeError: when shapes, devices, types or ids do not fit.
    """
    sizes = checks.shapes(
        local_BHTD=local_BHTD,
        q_BHTD=q_BHTD,
        k_BKncD=k_BKncD,
        v_BKncD=v_BKncD,
        ids_BHTm=ids_BHTm,
        retrieved_BHTm=retrieved_BHTm,
        gate_H=gate_H,
    )
    checks.heads(sizes)
    checks.one_float_type(local_BHTD=local_BHTD, q_BHTD=q_BHTD)
    checks.one_float_type(k_BKncD=k_BKncD, v_BKncD=v_BKncD)
    checks.one_float_type(gate_H=gate_H)
    checks.of_type(torch.int64, ids_BHTm=ids_BHTm)
    checks.of_type(torch.bool, retrieved_BHTm=retrieved_BHTm)
    plain = dispatch.forced_form() == "reference"
    if plain or 0 in sizes.values():
        checks.ids(ids_BHTm, retrieved_BHTm, sizes["n"])
    if 0 in sizes.values():
        return local_BHTD
    if plain:
        return reference.fuse_memory(local_BHTD, q_BHTD, k_BKncD, v_BKncD, ids_BHTm, retrieved_BHTm, gate_H, scale)
    out_BHTD: Tensor = ops.fuse_memory(local_BHTD, q_BHTD, k_BKncD, v_BKncD, ids_BHTm, retrieved_BHTm, gate_H, scale)[0]
    return out_BHTD
