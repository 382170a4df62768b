"""One softmax over local keys and chunk summaries (EVA, Zheng et al. 2023, section 4; EVALM, section 3).

Legend: B rows, H query heads, K key/value heads, T queries, S local keys, n chunks, D head width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from contextlab.kernels import checks, dispatch
from contextlab.kernels.eva_attention import ops, reference

__all__ = ["eva_attention"]


def eva_attention(
    q_BHTD: Tensor,
    k_BKSD: Tensor,
    v_BKSD: Tensor,
    chunk_k_BKnD: Tensor,
    chunk_v_BKnD: Tensor,
    *,
    scale: float,
    bias: Tensor | None = None,
    counts_BT: Tensor | None = None,
    chunk_bias_H: Tensor | None = None,
    window: int | None = None,
    overlap: bool = False,
) -> Tensor:
    """Attention of every query over local keys and the chunks that it sees; a chunk counts as one token.

    Args:
        q_BHTD: queries, the last T of the S tokens; consecutive groups of heads share a key head.
        k_BKSD: local keys.
        v_BKSD: local values.
        chunk_k_BKnD: keys of chunks, oldest first.
        chunk_v_BKnD: values of chunks.
        scale: factor of the logits.
        bias: added to the local logits, broadcastable to BHTS, -inf where a key is not seen; every query must see one
            key. Without a bias, attention to the local keys is causal. Its gradient is plain torch on a GPU.
        counts_BT: how many chunks each query sees, from the first on, int64; all when None. A number out of range is
            clamped, so that padding may have any.
        chunk_bias_H: added to the logits of chunks; heads with -inf see none.
        window: tokens of a window; the first window begins at the first local key, and a query sees the keys of its
            own window. All keys are one window when None.
        overlap: whether a query also sees the window before its own.

    Returns:
        `out_BHTD`.

    Raises:
        ValueError, TypeError: when shapes, devices or types do not fit.
    """
    tensors = {"q_BHTD": q_BHTD, "k_BKSD": k_BKSD, "v_BKSD": v_BKSD}
    tensors |= {"chunk_k_BKnD": chunk_k_BKnD, "chunk_v_BKnD": chunk_v_BKnD}
    optional = {"counts_BT": counts_BT, "chunk_bias_H": chunk_bias_H}
    sizes = checks.shapes(**tensors, **{name: x for name, x in optional.items() if x is not None})
    checks.heads(sizes)
    checks.one_float_type(**tensors)
    if counts_BT is not None:
        checks.of_type(torch.int64, counts_BT=counts_BT)
    if chunk_bias_H is not None:
        checks.one_float_type(chunk_bias_H=chunk_bias_H)
    if sizes["T"] > sizes["S"]:
        raise ValueError(f"There are {sizes['T']} queries but {sizes['S']} keys: give every query its own key.")
    if bias is not None:
        bias = _checked_bias(bias, sizes, windows=window is not None)
    if window is not None and window < 1:
        raise ValueError(f"A window of {window} tokens holds no query: give 1 or more.")
    if overlap and window is None:
        raise ValueError("Nothing overlaps without windows: give window= too.")
    if 0 in q_BHTD.shape:
        return q_BHTD
    window = window or sizes["S"]
    shape = (scale, window, window if overlap else 0)
    form = reference.eva_attention if dispatch.forced_form() == "reference" else ops.eva_attention
    out = form(q_BHTD, k_BKSD, v_BKSD, chunk_k_BKnD, chunk_v_BKnD, bias, counts_BT, chunk_bias_H, *shape)
    out_BHTD: Tensor = out if isinstance(out, Tensor) else out[0]
    return out_BHTD


def _checked_bias(bias: Tensor, sizes: dict[str, int], *, windows: bool) -> Tensor:
    """The bias with four dimensions."""
    checks.one_float_type(bias=bias)
    if windows:
        raise ValueError("A bias already says which keys are seen: give either bias or window.")
    full = [sizes[letter] for letter in "BHTS"]
    bias_BHTS = bias[(None,) * max(4 - bias.dim(), 0)]
    if bias_BHTS.dim() != 4 or any(size not in (1, most) for size, most in zip(bias_BHTS.shape, full, strict=True)):
        raise ValueError(f"A bias of {list(bias.shape)} does not broadcast to BHTS = {full}: give one that does.")
    return bias_BHTS
