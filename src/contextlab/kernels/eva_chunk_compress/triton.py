"""Chunk pooling in Triton: one pass over keys and values; a tile holds some tokens of some chunks.

Logits are in units of log 2, because the hardware computes powers of 2. All sums are float32. Keys and values may have
any strides of rows, heads and tokens, so that projections need no copy.

Legend: B rows, K key/value heads, T tokens, D head width, n chunks.
"""

# mypy: allow-untyped-decorators
# ruff: noqa: ARG001 - `bucket` is read by the tuner only.

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from contextlab.kernels.tiling import LOG2E, NEVER, bucket_of, load_rows, padded_width, store_rows, tuned

KEY = ["WIDTH", "CHUNK", "FEATURES", "bucket"]
TILES = ((8, 16, 4, 2), (4, 16, 4, 3), (2, 32, 4, 3), (1, 64, 4, 3))


@triton.jit
def _offsets(
    n: tl.tensor,
    j: tl.tensor,
    tokens: tl.tensor,
    step: tl.tensor,
    d: tl.tensor,
    CHUNK: tl.constexpr,
    WIDTH: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Offsets of a tile of chunks and tokens, and masks of its existing elements and tokens."""
    token = n[:, None] * CHUNK + j[None, :]
    real = (j < CHUNK)[None, :] & (token < tokens)
    offset = token.to(tl.int64)[:, :, None] * step + d[None, None, :]
    return offset, real[:, :, None] & (d < WIDTH)[None, None, :], real


@tuned(("BLOCK_N", "BLOCK_C"), TILES, KEY)
@triton.jit(do_not_specialize=["bucket"])
def _pool(
    w_BKnD: tl.tensor,
    k_BKTD: tl.tensor,
    v_BKTD: tl.tensor,
    key_BKnD: tl.tensor,
    value_BKnD: tl.tensor,
    lse_BKn: tl.tensor,
    heads: tl.tensor,
    tokens: tl.tensor,
    chunks: tl.tensor,
    k_row: tl.tensor,
    k_head: tl.tensor,
    k_step: tl.tensor,
    v_row: tl.tensor,
    v_head: tl.tensor,
    v_step: tl.tensor,
    scale: tl.tensor,
    bucket: tl.tensor,
    CHUNK: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_D: tl.constexpr,
    FEATURES: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr,
) -> None:
    bk = tl.program_id(1).to(tl.int64)
    n, d = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_D)
    k_TD = k_BKTD + bk // heads * k_row + bk % heads * k_head
    v_TD = v_BKTD + bk // heads * v_row + bk % heads * v_head
    w = load_rows(w_BKnD + bk * chunks * WIDTH, n, chunks, d, WIDTH).to(tl.float32)[:, None, :]
    top = tl.full([BLOCK_N], NEVER, tl.float32)
    total = tl.zeros([BLOCK_N], tl.float32)
    key = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    value = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    for j0 in range(0, CHUNK, BLOCK_C):
        j = j0 + tl.arange(0, BLOCK_C)
        offset, mask, real = _offsets(n, j, tokens, k_step, d, CHUNK, WIDTH)
        k = tl.load(k_TD + offset, mask=mask, other=0.0).to(tl.float32)
        offset, mask, real = _offsets(n, j, tokens, v_step, d, CHUNK, WIDTH)
        v = tl.load(v_TD + offset, mask=mask, other=0.0).to(tl.float32)
        toward = w - 0.5 * k if FEATURES else w
        logits = tl.where(real, tl.sum(k * toward, 2) * (scale * LOG2E), NEVER)
        higher = tl.maximum(top, tl.max(logits, 1))
        # A chunk after the last token has no highest logit to subtract.
        ground = tl.where(higher == NEVER, 0.0, higher)
        shrink = tl.exp2(top - ground)
        weights = tl.exp2(logits - ground[:, None])
        total = total * shrink + tl.sum(weights, 1)
        value = value * shrink[:, None] + tl.sum(weights[:, :, None] * v, 1)
        if not FEATURES:
            key = key * shrink[:, None] + tl.sum(weights[:, :, None] * k, 1)
        top = higher
    total = tl.where(n < chunks, total, 1.0)
    store_rows(value_BKnD + bk * chunks * WIDTH, value / total[:, None], n, chunks, d, WIDTH)
    if not FEATURES:
        store_rows(key_BKnD + bk * chunks * WIDTH, key / total[:, None], n, chunks, d, WIDTH)
    tl.store(lse_BKn + bk * chunks + n, (top + tl.log2(total)) / LOG2E, mask=n < chunks)


@tuned(("BLOCK_N", "BLOCK_C"), TILES, KEY)
@triton.jit(do_not_specialize=["bucket"])
def _pool_backward(
    dkey_BKnD: tl.tensor,
    dvalue_BKnD: tl.tensor,
    w_BKnD: tl.tensor,
    k_BKTD: tl.tensor,
    v_BKTD: tl.tensor,
    lse_BKn: tl.tensor,
    delta_BKn: tl.tensor,
    dw_BKnD: tl.tensor,
    dk_BKTD: tl.tensor,
    dv_BKTD: tl.tensor,
    heads: tl.tensor,
    tokens: tl.tensor,
    chunks: tl.tensor,
    k_row: tl.tensor,
    k_head: tl.tensor,
    k_step: tl.tensor,
    v_row: tl.tensor,
    v_head: tl.tensor,
    v_step: tl.tensor,
    scale: tl.tensor,
    bucket: tl.tensor,
    CHUNK: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_D: tl.constexpr,
    FEATURES: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr,
) -> None:
    bk = tl.program_id(1).to(tl.int64)
    n, d = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_D)
    k_TD = k_BKTD + bk // heads * k_row + bk % heads * k_head
    v_TD = v_BKTD + bk // heads * v_row + bk % heads * v_head
    w = load_rows(w_BKnD + bk * chunks * WIDTH, n, chunks, d, WIDTH).to(tl.float32)[:, None, :]
    dvalue = load_rows(dvalue_BKnD + bk * chunks * WIDTH, n, chunks, d, WIDTH).to(tl.float32)[:, None, :]
    if not FEATURES:
        dkey = load_rows(dkey_BKnD + bk * chunks * WIDTH, n, chunks, d, WIDTH).to(tl.float32)[:, None, :]
    lse = tl.load(lse_BKn + bk * chunks + n, mask=n < chunks, other=0.0) * LOG2E
    delta = tl.load(delta_BKn + bk * chunks + n, mask=n < chunks, other=0.0)
    dw = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    for j0 in range(0, CHUNK, BLOCK_C):
        j = j0 + tl.arange(0, BLOCK_C)
        offset, mask, real = _offsets(n, j, tokens, v_step, d, CHUNK, WIDTH)
        v = tl.load(v_TD + offset, mask=mask, other=0.0).to(tl.float32)
        offset, mask, real = _offsets(n, j, tokens, k_step, d, CHUNK, WIDTH)
        k = tl.load(k_TD + offset, mask=mask, other=0.0).to(tl.float32)
        toward = w - 0.5 * k if FEATURES else w
        logits = tl.where(real, tl.sum(k * toward, 2) * (scale * LOG2E), NEVER)
        weights = tl.exp2(logits - lse[:, None])
        dweights = tl.sum(v * dvalue, 2)
        if not FEATURES:
            dweights += tl.sum(k * dkey, 2)
        dlogits = (weights * (dweights - delta[:, None]) * scale)[:, :, None]
        dw += tl.sum(dlogits * k, 1)
        dk = dlogits * (w - k) if FEATURES else dlogits * w + weights[:, :, None] * dkey
        offset, mask, real = _offsets(n, j, tokens, WIDTH, d, CHUNK, WIDTH)
        offset += bk * tokens * WIDTH
        tl.store(dk_BKTD + offset, dk.to(dk_BKTD.dtype.element_ty), mask=mask)
        tl.store(dv_BKTD + offset, (weights[:, :, None] * dvalue).to(dv_BKTD.dtype.element_ty), mask=mask)
    store_rows(dw_BKnD + bk * chunks * WIDTH, dw, n, chunks, d, WIDTH)


def forward(
    w_BKnD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, chunk: int, scale: float, features: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """See `blocked.forward`."""
    w_BKnD, k_BKTD, v_BKTD = w_BKnD.contiguous(), _in_rows(k_BKTD), _in_rows(v_BKTD)
    value_BKnD, lse_BKn = torch.empty_like(w_BKnD), w_BKnD.new_empty(w_BKnD.shape[:3], dtype=torch.float32)
    key_BKnD = w_BKnD.new_empty((0,) if features else w_BKnD.shape)
    grid, sizes, shape = _launch(w_BKnD, k_BKTD, v_BKTD, chunk, features)
    _pool[grid](w_BKnD, k_BKTD, v_BKTD, key_BKnD, value_BKnD, lse_BKn, *sizes, scale, **shape)
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
    """See `blocked.backward`."""
    dkey_BKnD, dvalue_BKnD, w_BKnD = (x.contiguous() for x in (dkey_BKnD, dvalue_BKnD, w_BKnD))
    k_BKTD, v_BKTD, lse_BKn = _in_rows(k_BKTD), _in_rows(v_BKTD), lse_BKn.contiguous()
    delta_BKn = (dvalue_BKnD.float() * value_BKnD.float()).sum(-1)
    if not features:
        delta_BKn += (dkey_BKnD.float() * key_BKnD.float()).sum(-1)
    dw_BKnD = torch.empty_like(w_BKnD)
    dk_BKTD, dv_BKTD = (x.new_empty(x.shape) for x in (k_BKTD, v_BKTD))
    grid, sizes, shape = _launch(w_BKnD, k_BKTD, v_BKTD, chunk, features)
    inputs = (dkey_BKnD, dvalue_BKnD, w_BKnD, k_BKTD, v_BKTD, lse_BKn, delta_BKn)
    _pool_backward[grid](*inputs, dw_BKnD, dk_BKTD, dv_BKTD, *sizes, scale, **shape)
    return dw_BKnD, dk_BKTD, dv_BKTD


def _in_rows(x_BKTD: Tensor) -> Tensor:
    return x_BKTD if x_BKTD.stride(3) == 1 else x_BKTD.contiguous()


def _launch(
    w_BKnD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, chunk: int, features: bool
) -> tuple[Any, tuple[int, ...], dict[str, Any]]:
    rows, heads, tokens, width = k_BKTD.shape
    chunks = w_BKnD.shape[2]
    shape = {
        "CHUNK": chunk,
        "WIDTH": width,
        "BLOCK_D": padded_width(width),
        "FEATURES": features,
        "bucket": bucket_of(chunks),
    }
    sizes = (heads, tokens, chunks, *k_BKTD.stride()[:3], *v_BKTD.stride()[:3])
    return lambda meta: (triton.cdiv(chunks, meta["BLOCK_N"]), rows * heads), sizes, shape
