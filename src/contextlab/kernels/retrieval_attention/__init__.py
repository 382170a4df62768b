"""One softmax over local keys and the retrieved chunks of every query.

Legend: B rows, H query heads, K key/value heads, T queries, S local keys, D head width, n chunks of the bank, c tokens
of a chunk, m chunks retrieved. Query heads share key heads in consecutive groups.
"""

from __future__ import annotations

import torch
from torch import Tensor

from contextlab.kernels import checks, dispatch
from contextlab.kernels.retrieval_attention import ops, reference
from contextlab.kernels.retrieval_attention.ops import retrieval_attention_flops

__all__ = ["retrieval_attention", "retrieval_attention_flops"]


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
    *,
    scale: float,
) -> Tensor:
    """Softmax attention over all visible local keys and the retrieved tokens together.

    Args:
        q_BHTD: queries for the local keys, after rotary encoding.
        k_BKSD: local keys.
        v_BKSD: local values.
        mask_BTS: added to the local logits, -inf for what is not seen; every query sees a key; one row may stand for
            all; it gets no gradient.
        q_memory_BHTD: queries for the bank's keys.
        k_BKncD: keys of the bank, of any floating-point type; read in place.
        v_BKncD: values of the bank.
        ids_BHTm: retrieved chunks, int64; on a CPU those that the bank lacks are refused, on a GPU, where a look at
            them would wait for it, they count as not retrieved.
        retrieved_BHTm: which of them exist, the ids of the others being anything.
        bias_H: added to the logits of retrieved tokens.
        scale: factor of the logits.

    Returns:
        `out_BHTD`.

    Raises:
        ValueError, TypeError: when shapes, devices, types or ids do not fit.
    """
    shared = mask_BTS.dim() == 3 and mask_BTS.shape[0] == 1
    local = {"q_BHTD": q_BHTD, "k_BKSD": k_BKSD, "v_BKSD": v_BKSD, "q_memory_BHTD": q_memory_BHTD}
    mask = {"mask_1TS" if shared else "mask_BTS": mask_BTS}
    bank = {"k_BKncD": k_BKncD, "v_BKncD": v_BKncD}
    sizes = checks.shapes(**local, **mask, **bank, ids_BHTm=ids_BHTm, retrieved_BHTm=retrieved_BHTm, bias_H=bias_H)
    checks.heads(sizes)
    for floating in (local, mask, bank, {"bias_H": bias_H}):
        checks.one_float_type(**floating)
    checks.of_type(torch.int64, ids_BHTm=ids_BHTm)
    checks.of_type(torch.bool, retrieved_BHTm=retrieved_BHTm)
    if 0 in q_BHTD.shape:
        return q_BHTD
    inputs = (
        q_BHTD,
        k_BKSD,
        v_BKSD,
        mask_BTS,
        q_memory_BHTD,
        k_BKncD,
        v_BKncD,
        ids_BHTm,
        retrieved_BHTm,
        bias_H,
        scale,
    )
    if dispatch.forced_form() == "reference" or 0 in (sizes["n"], sizes["m"]):
        checks.ids(ids_BHTm, retrieved_BHTm, sizes["n"])
        return reference.retrieval_attention(*inputs)
    out_BHTD: Tensor = ops.retrieval_attention(*inputs)[0]
    return out_BHTD
