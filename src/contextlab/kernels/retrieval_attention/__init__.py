"""One softmax over local keys and the retrieved chunks of every query.

Legend: B rows, H query heads, K key/value heads, T queries, S local keys, D head width, n chunks of the bank, c tokens
of a chunk, m chunks retrieved. Query heads share key heads in consecutive groups.
"""

from __future__ import annotations

import torch
from torch import Tensor

from contextlab.kernels import checks, dispatch
from contextlab.kernels.retrieval_attention import ops, reference
from contextlab.kernels.retrieval_attention.inputs import Inputs
from contextlab.kernels.retrieval_attention.ops import retrieval_attention_flops

__all__ = ["Inputs", "retrieval_attention", "retrieval_attention_flops"]

TYPES = (("q_BHTD", "k_BKSD", "v_BKSD", "q_memory_BHTD"), ("mask_BTS",), ("k_BKncD", "v_BKncD"), ("bias_H",))
"""Inputs that have one floating-point type together."""


def retrieval_attention(inputs: Inputs, *, scale: float) -> Tensor:
    """Softmax attention over all visible local keys and the retrieved tokens together.

    Args:
        inputs: queries, local keys and values, and the bank.
        scale: factor of the logits.

    Returns:
        `out_BHTD`.

    Raises:
        ValueError, TypeError: when shapes, devices, types or ids do not fit.
    """
    named = inputs._asdict()
    if inputs.mask_BTS.dim() == 3 and inputs.mask_BTS.shape[0] == 1:
        named["mask_1TS"] = named.pop("mask_BTS")
    sizes = checks.shapes(**named)
    checks.heads(sizes)
    for names in TYPES:
        checks.one_float_type(**{name: getattr(inputs, name) for name in names})
    checks.of_type(torch.int64, ids_BHTm=inputs.ids_BHTm)
    checks.of_type(torch.bool, retrieved_BHTm=inputs.retrieved_BHTm)
    if 0 in inputs.q_BHTD.shape:
        return inputs.q_BHTD
    if dispatch.forced_form() == "reference" or 0 in (sizes["n"], sizes["m"]):
        checks.ids(inputs.ids_BHTm, inputs.retrieved_BHTm, sizes["n"])
        return reference.retrieval_attention(inputs, scale)
    out_BHTD: Tensor = ops.retrieval_attention(*inputs, scale)[0]
    return out_BHTD
