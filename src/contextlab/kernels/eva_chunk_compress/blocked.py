"""Chunk pooling in torch, some chunks at a time, so that the tensors fit a CPU's cache.

Legend: B rows, K key/value heads, T tokens, D head width, n chunks, b of them in a block, c tokens of a chunk.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from contextlab.kernels.buffers import at_once, contiguous_like, wide

ELEMENTS = 2**17


def forward(
    w_BKnD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, chunk: int, scale: float, features: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """`key_BKnD` (empty with features), `value_BKnD`, and the logarithm of every denominator, `lse_BKn`."""
    value_BKnD, lse_BKn = contiguous_like(w_BKnD), w_BKnD.new_empty(w_BKnD.shape[:3], dtype=wide(w_BKnD))
    key_BKnD = w_BKnD.new_empty(0) if features else contiguous_like(w_BKnD)
    for chunks, tokens, size in _blocks(k_BKTD, chunk):
        k_BKbcD, v_BKbcD = (_chunks_of(x, tokens, size) for x in (k_BKTD, v_BKTD))
        logits_BKbc = _logits(w_BKnD[:, :, chunks], k_BKbcD, scale, features)
        lse_BKn[:, :, chunks] = logits_BKbc.logsumexp(-1)
        weights_BKbc1 = logits_BKbc.sub_(lse_BKn[:, :, chunks, None]).exp_()[..., None]
        value_BKnD[:, :, chunks] = (weights_BKbc1 * v_BKbcD).sum(-2)
        if not features:
            key_BKnD[:, :, chunks] = (weights_BKbc1 * k_BKbcD).sum(-2)
    return key_BKnD, value_BKnD, lse_BKn


def backward(
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
    kind = wide(w_BKnD)
    dw_BKnD, dk_BKTD, dv_BKTD = (contiguous_like(x) for x in (w_BKnD, k_BKTD, v_BKTD))
    for chunks, tokens, size in _blocks(k_BKTD, chunk):
        k_BKbcD, v_BKbcD = (_chunks_of(x, tokens, size) for x in (k_BKTD, v_BKTD))
        w_BKbD, dvalue_BKbD, value_BKbD = (x[:, :, chunks].to(kind) for x in (w_BKnD, dvalue_BKnD, value_BKnD))
        weights_BKbc = _logits(w_BKbD, k_BKbcD, scale, features).sub_(lse_BKn[:, :, chunks, None]).exp_()
        dlogits_BKbc = (v_BKbcD * dvalue_BKbD[..., None, :]).sum(-1)
        delta_BKb1 = (dvalue_BKbD * value_BKbD).sum(-1, keepdim=True)
        if not features:
            dkey_BKbD = dkey_BKnD[:, :, chunks].to(kind)
            dlogits_BKbc += (k_BKbcD * dkey_BKbD[..., None, :]).sum(-1)
            delta_BKb1 += (dkey_BKbD * key_BKnD[:, :, chunks]).sum(-1, keepdim=True)
        dlogits_BKbc = dlogits_BKbc.sub_(delta_BKb1).mul_(weights_BKbc).mul_(scale)
        dw_BKnD[:, :, chunks] = (dlogits_BKbc[..., None] * k_BKbcD).sum(-2)
        toward_BKbcD = w_BKbD[..., None, :] - k_BKbcD if features else w_BKbD[..., None, :]
        dk_BKbcD = dlogits_BKbc[..., None] * toward_BKbcD
        if not features:
            dk_BKbcD += weights_BKbc[..., None] * dkey_BKbD[..., None, :]
        dk_BKTD[:, :, tokens] = dk_BKbcD.flatten(2, 3)
        dv_BKTD[:, :, tokens] = (weights_BKbc[..., None] * dvalue_BKbD[..., None, :]).flatten(2, 3)
    return dw_BKnD, dk_BKTD, dv_BKTD


def _blocks(k_BKTD: Tensor, chunk: int) -> Iterator[tuple[slice, slice, int]]:
    """Chunks of one size, their tokens, and that size: blocks of whole chunks, then the incomplete chunk."""
    rows, heads, length, width = k_BKTD.shape
    whole, rest = divmod(length, chunk)
    step = max(1, at_once(ELEMENTS, k_BKTD) // (rows * heads * chunk * width))
    for begin in range(0, whole, step):
        end = min(begin + step, whole)
        yield slice(begin, end), slice(begin * chunk, end * chunk), chunk
    if rest:
        yield slice(whole, whole + 1), slice(whole * chunk, length), rest


def _chunks_of(x_BKTD: Tensor, tokens: slice, size: int) -> Tensor:
    x_BKbcD: Tensor = x_BKTD[:, :, tokens].unflatten(2, (-1, size)).to(wide(x_BKTD))
    return x_BKbcD


def _logits(w_BKbD: Tensor, k_BKbcD: Tensor, scale: float, features: bool) -> Tensor:
    toward_BKb1D = w_BKbD[..., None, :].to(k_BKbcD.dtype)
    toward = torch.sub(toward_BKb1D, k_BKbcD, alpha=0.5) if features else toward_BKb1D
    return (toward * k_BKbcD).sum(-1).mul_(scale)
