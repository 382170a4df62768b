"""The local part in Triton: tiled causal attention that never stores its scores.

Logits are in units of log 2, because the hardware computes powers of 2. All tensors are contiguous, all sums float32.

Legend: B rows, H query heads, K key/value heads, T queries, S local keys, D head width.
"""

# mypy: allow-untyped-decorators
# ruff: noqa: ARG001 - `bucket` is read by the tuner only.

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from contextlab.kernels.tiling import (
    LOG2E,
    NEVER,
    PRECISION,
    WIDER,
    WIDER_OF_KEYS,
    bucket_of,
    fold,
    load_rows,
    padded_width,
    query_gradients,
    store_rows,
    tile_gradients,
    tuned,
)

FORWARD = ((128, 64, 8, 3), (128, 128, 8, 2), (64, 64, 4, 3), (16, 64, 4, 2))
BACKWARD = ((64, 64, 4, 2), (64, 128, 8, 2), (16, 64, 4, 2))


@triton.jit
def _logits(
    q: tl.tensor,
    k: tl.tensor,
    slope: tl.tensor,
    t: tl.tensor,
    s: tl.tensor,
    keys: tl.tensor,
    scale: tl.tensor,
    SLOPES: tl.constexpr,
    MASKED: tl.constexpr,
) -> tl.tensor:
    """Logits of one tile; `t` counts queries as keys."""
    logits = tl.dot(q, tl.trans(k), input_precision=PRECISION) * (scale * LOG2E)
    if SLOPES:
        logits += slope * LOG2E * (s[None, :] - t[:, None]).to(tl.float32)
    if MASKED:
        logits = tl.where((s[None, :] <= t[:, None]) & (s[None, :] < keys), logits, NEVER)
    return logits


@tuned(("BLOCK_T", "BLOCK_S"), FORWARD, ["WIDTH", "bucket"], wider=WIDER)
@triton.jit(do_not_specialize=["bucket"])
def _local_forward(
    q_BHTD: tl.tensor,
    k_BKSD: tl.tensor,
    v_BKSD: tl.tensor,
    slopes_H: tl.tensor,
    out_BHTD: tl.tensor,
    lse_BHT: tl.tensor,
    heads: tl.tensor,
    groups: tl.tensor,
    queries: tl.tensor,
    keys: tl.tensor,
    scale: tl.tensor,
    bucket: tl.tensor,
    WIDTH: tl.constexpr,
    BLOCK_D: tl.constexpr,
    SLOPES: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_S: tl.constexpr,
) -> None:
    bh = tl.program_id(1).to(tl.int64)
    bk = bh // groups
    first = tl.program_id(0) * BLOCK_T
    row, d = first + tl.arange(0, BLOCK_T), tl.arange(0, BLOCK_D)
    t = row + (keys - queries)
    q = load_rows(q_BHTD + bh * queries * WIDTH, row, queries, d, WIDTH)
    k_SD, v_SD = k_BKSD + bk * keys * WIDTH, v_BKSD + bk * keys * WIDTH
    slope = tl.load(slopes_H + bh % heads).to(tl.float32) if SLOPES else 0.0
    top = tl.full([BLOCK_T], NEVER, tl.float32)
    total = tl.zeros([BLOCK_T], tl.float32)
    out = tl.zeros([BLOCK_T, BLOCK_D], tl.float32)
    seen_by_all = (first + keys - queries + 1) // BLOCK_S * BLOCK_S
    for s0 in range(0, seen_by_all, BLOCK_S):
        s = s0 + tl.arange(0, BLOCK_S)
        k, v = load_rows(k_SD, s, keys, d, WIDTH), load_rows(v_SD, s, keys, d, WIDTH)
        logits = _logits(q, k, slope, t, s, keys, scale, SLOPES, False)
        top, total, out = fold(logits, v, top, total, out)
    for s0 in range(seen_by_all, tl.minimum(keys, first + BLOCK_T + keys - queries), BLOCK_S):
        s = s0 + tl.arange(0, BLOCK_S)
        k, v = load_rows(k_SD, s, keys, d, WIDTH), load_rows(v_SD, s, keys, d, WIDTH)
        logits = _logits(q, k, slope, t, s, keys, scale, SLOPES, True)
        top, total, out = fold(logits, v, top, total, out)
    store_rows(out_BHTD + bh * queries * WIDTH, out / total[:, None], row, queries, d, WIDTH)
    tl.store(lse_BHT + bh * queries + row, (top + tl.log2(total)) / LOG2E, mask=row < queries)


@tuned(("BLOCK_T", "BLOCK_S"), BACKWARD, ["WIDTH", "bucket"], wider=WIDER)
@triton.jit(do_not_specialize=["bucket"])
def _local_dq(
    dout_BHTD: tl.tensor,
    q_BHTD: tl.tensor,
    k_BKSD: tl.tensor,
    v_BKSD: tl.tensor,
    slopes_H: tl.tensor,
    lse_BHT: tl.tensor,
    delta_BHT: tl.tensor,
    dq_BHTD: tl.tensor,
    heads: tl.tensor,
    groups: tl.tensor,
    queries: tl.tensor,
    keys: tl.tensor,
    scale: tl.tensor,
    bucket: tl.tensor,
    WIDTH: tl.constexpr,
    BLOCK_D: tl.constexpr,
    SLOPES: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_S: tl.constexpr,
) -> None:
    bh = tl.program_id(1).to(tl.int64)
    bk = bh // groups
    first = tl.program_id(0) * BLOCK_T
    row, d = first + tl.arange(0, BLOCK_T), tl.arange(0, BLOCK_D)
    t = row + (keys - queries)
    q = load_rows(q_BHTD + bh * queries * WIDTH, row, queries, d, WIDTH)
    dout = load_rows(dout_BHTD + bh * queries * WIDTH, row, queries, d, WIDTH)
    lse = tl.load(lse_BHT + bh * queries + row, mask=row < queries, other=0.0) * LOG2E
    delta = tl.load(delta_BHT + bh * queries + row, mask=row < queries, other=0.0)
    k_SD, v_SD = k_BKSD + bk * keys * WIDTH, v_BKSD + bk * keys * WIDTH
    slope = tl.load(slopes_H + bh % heads).to(tl.float32) if SLOPES else 0.0
    dq = tl.zeros([BLOCK_T, BLOCK_D], tl.float32)
    for s0 in range(0, tl.minimum(keys, first + BLOCK_T + keys - queries), BLOCK_S):
        s = s0 + tl.arange(0, BLOCK_S)
        k, v = load_rows(k_SD, s, keys, d, WIDTH), load_rows(v_SD, s, keys, d, WIDTH)
        logits = _logits(q, k, slope, t, s, keys, scale, SLOPES, True)
        dq, _ = query_gradients(logits, k, v, dout, lse, delta, dq)
    store_rows(dq_BHTD + bh * queries * WIDTH, dq * scale, row, queries, d, WIDTH)


@tuned(("BLOCK_T", "BLOCK_S"), BACKWARD, ["WIDTH", "bucket"], wider=WIDER_OF_KEYS)
@triton.jit(do_not_specialize=["bucket"])
def _local_dkdv(
    dout_BHTD: tl.tensor,
    q_BHTD: tl.tensor,
    k_BKSD: tl.tensor,
    v_BKSD: tl.tensor,
    slopes_H: tl.tensor,
    lse_BHT: tl.tensor,
    delta_BHT: tl.tensor,
    dk_BKSD: tl.tensor,
    dv_BKSD: tl.tensor,
    heads: tl.tensor,
    groups: tl.tensor,
    queries: tl.tensor,
    keys: tl.tensor,
    scale: tl.tensor,
    bucket: tl.tensor,
    WIDTH: tl.constexpr,
    BLOCK_D: tl.constexpr,
    SLOPES: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_S: tl.constexpr,
) -> None:
    bk = tl.program_id(1).to(tl.int64)
    first = tl.program_id(0) * BLOCK_S
    s, d = first + tl.arange(0, BLOCK_S), tl.arange(0, BLOCK_D)
    k = load_rows(k_BKSD + bk * keys * WIDTH, s, keys, d, WIDTH)
    v = load_rows(v_BKSD + bk * keys * WIDTH, s, keys, d, WIDTH)
    dk = tl.zeros([BLOCK_S, BLOCK_D], tl.float32)
    dv = tl.zeros([BLOCK_S, BLOCK_D], tl.float32)
    for bh in range(bk * groups, (bk + 1) * groups):
        q_TD, dout_TD = q_BHTD + bh * queries * WIDTH, dout_BHTD + bh * queries * WIDTH
        slope = tl.load(slopes_H + bh % heads).to(tl.float32) if SLOPES else 0.0
        for t0 in range(tl.maximum(0, first - (keys - queries)) // BLOCK_T * BLOCK_T, queries, BLOCK_T):
            row = t0 + tl.arange(0, BLOCK_T)
            q, dout = load_rows(q_TD, row, queries, d, WIDTH), load_rows(dout_TD, row, queries, d, WIDTH)
            # Rows after the last query have weight 0.
            lse = tl.load(lse_BHT + bh * queries + row, mask=row < queries, other=float("inf")) * LOG2E
            delta = tl.load(delta_BHT + bh * queries + row, mask=row < queries, other=0.0)
            logits = _logits(q, k, slope, row + (keys - queries), s, keys, scale, SLOPES, True)
            dk, dv = tile_gradients(logits, q, dout, v, lse, delta, dk, dv)
    store_rows(dk_BKSD + bk * keys * WIDTH, dk * scale, s, keys, d, WIDTH)
    store_rows(dv_BKSD + bk * keys * WIDTH, dv, s, keys, d, WIDTH)


def local_forward(
    q_BHTD: Tensor, k_BKSD: Tensor, v_BKSD: Tensor, slopes_H: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """See `blocked.local_forward`."""
    q_BHTD, k_BKSD, v_BKSD = (x.contiguous() for x in (q_BHTD, k_BKSD, v_BKSD))
    slopes_H = None if slopes_H is None else slopes_H.contiguous()
    out_BHTD, lse_BHT = torch.empty_like(q_BHTD), q_BHTD.new_empty(q_BHTD.shape[:3], dtype=torch.float32)
    grid, sizes, shape = _local_launch(q_BHTD, k_BKSD, slopes_H)
    _local_forward[grid](q_BHTD, k_BKSD, v_BKSD, slopes_H, out_BHTD, lse_BHT, *sizes, scale, **shape)
    return out_BHTD, lse_BHT


def local_backward(
    dout_BHTD: Tensor,
    q_BHTD: Tensor,
    k_BKSD: Tensor,
    v_BKSD: Tensor,
    out_BHTD: Tensor,
    lse_BHT: Tensor,
    slopes_H: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """See `blocked.local_backward`."""
    dout_BHTD, q_BHTD, k_BKSD, v_BKSD = (x.contiguous() for x in (dout_BHTD, q_BHTD, k_BKSD, v_BKSD))
    slopes_H = None if slopes_H is None else slopes_H.contiguous()
    lse_BHT = lse_BHT.contiguous()
    delta_BHT = (dout_BHTD.float() * out_BHTD.float()).sum(-1)
    dq_BHTD, dk_BKSD, dv_BKSD = (torch.empty_like(x) for x in (q_BHTD, k_BKSD, v_BKSD))
    grid, sizes, shape = _local_launch(q_BHTD, k_BKSD, slopes_H)
    inputs = (dout_BHTD, q_BHTD, k_BKSD, v_BKSD, slopes_H, lse_BHT, delta_BHT)
    _local_dq[grid](*inputs, dq_BHTD, *sizes, scale, **shape)
    rows, kv_heads, keys, _ = k_BKSD.shape
    by_key = lambda meta: (triton.cdiv(keys, meta["BLOCK_S"]), rows * kv_heads)  # noqa: E731
    _local_dkdv[by_key](*inputs, dk_BKSD, dv_BKSD, *sizes, scale, **shape)
    return dq_BHTD, dk_BKSD, dv_BKSD


def _local_launch(q_BHTD: Tensor, k_BKSD: Tensor, slopes_H: Tensor | None) -> tuple[Any, tuple[int, ...], Any]:
    rows, heads, queries, width = q_BHTD.shape
    shape = {
        "WIDTH": width,
        "BLOCK_D": padded_width(width),
        "SLOPES": slopes_H is not None,
        "bucket": bucket_of(queries),
    }
    sizes = (heads, heads // k_BKSD.shape[1], queries, k_BKSD.shape[2])
    return lambda meta: (triton.cdiv(queries, meta["BLOCK_T"]), rows * heads), sizes, shape
