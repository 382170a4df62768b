"""One part of a softmax in Triton: tiled attention with any bias, which never stores its scores.

Logits are in units of log 2, because the hardware computes powers of 2; all sums are float32. Queries and results are
contiguous. Keys, values and bias are read in place: their strides, in numbers, are arguments, 0 where a bias is
broadcast. A single query of every head, as in generation, becomes one of the G rows of its key head, and long keys are
then divided into pieces, for which different processors compute.

Legend: B rows, H query heads, K key/value heads, T queries, S keys, D head width, x pieces of the keys.
"""

# mypy: allow-untyped-decorators
# ruff: noqa: ARG001 - `bucket` is read by the tuner only.

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from contextlab.kernels.buffers import in_rows
from contextlab.kernels.tiling import (
    LOG2E,
    NEVER,
    PRECISION,
    WIDER,
    WIDER_OF_KEYS,
    bucket_of,
    fold,
    load_apart,
    load_rows,
    padded_width,
    query_gradients,
    store_rows,
    tile_gradients,
    tuned,
)

FORWARD = ((128, 64, 8, 3), (128, 128, 8, 2), (64, 64, 4, 3), (16, 64, 4, 2))
BACKWARD = ((64, 64, 4, 2), (64, 128, 8, 2), (16, 64, 4, 2))
KEY = ["WIDTH", "BIAS", "CAUSAL", "bucket"]
KEYS_OF_A_PIECE = 256
PROGRAMS = 256
"""As many programs as a generated token is divided among, at most; about two for every processor of a large GPU."""


@triton.jit
def _logits(
    q: tl.tensor,
    k: tl.tensor,
    bias_TS: tl.tensor,
    row: tl.tensor,
    s: tl.tensor,
    queries: tl.tensor,
    keys: tl.tensor,
    query_step: tl.tensor,
    key_step: tl.tensor,
    scale: tl.tensor,
    BIAS: tl.constexpr,
    CAUSAL: tl.constexpr,
) -> tl.tensor:
    """Logits of one tile."""
    logits = tl.dot(q, tl.trans(k), input_precision=PRECISION) * (scale * LOG2E)
    inside = (row < queries)[:, None] & (s < keys)[None, :]
    if BIAS:
        offset = row.to(tl.int64)[:, None] * query_step + s.to(tl.int64)[None, :] * key_step
        logits += tl.load(bias_TS + offset, mask=inside, other=0.0).to(tl.float32) * LOG2E
    if CAUSAL:
        inside = inside & (s[None, :] <= row[:, None])
    return tl.where(inside, logits, NEVER)


@tuned(("BLOCK_T", "BLOCK_S"), FORWARD, KEY, wider=WIDER)
@triton.jit(do_not_specialize=["stretch", "bucket"])
def _forward(
    q_BHTD: tl.tensor,
    k_BKSD: tl.tensor,
    v_BKSD: tl.tensor,
    bias_BHTS: tl.tensor,
    out_xBHTD: tl.tensor,
    lse_xBHT: tl.tensor,
    stretch: tl.tensor,
    heads: tl.tensor,
    groups: tl.tensor,
    queries: tl.tensor,
    keys: tl.tensor,
    k_row_step: tl.tensor,
    k_head_step: tl.tensor,
    k_step: tl.tensor,
    v_row_step: tl.tensor,
    v_head_step: tl.tensor,
    v_step: tl.tensor,
    bias_row_step: tl.tensor,
    bias_head_step: tl.tensor,
    bias_query_step: tl.tensor,
    bias_key_step: tl.tensor,
    scale: tl.tensor,
    bucket: tl.tensor,
    WIDTH: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BIAS: tl.constexpr,
    CAUSAL: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_S: tl.constexpr,
) -> None:
    bh, piece = tl.program_id(1).to(tl.int64), tl.program_id(2)
    b, h = bh // heads, bh % heads
    first = tl.program_id(0) * BLOCK_T
    row, d = first + tl.arange(0, BLOCK_T), tl.arange(0, BLOCK_D)
    q = load_rows(q_BHTD + bh * queries * WIDTH, row, queries, d, WIDTH)
    k_SD = k_BKSD + b * k_row_step + h // groups * k_head_step
    v_SD = v_BKSD + b * v_row_step + h // groups * v_head_step
    bias_TS = bias_BHTS + b * bias_row_step + h * bias_head_step if BIAS else None
    top = tl.full([BLOCK_T], NEVER, tl.float32)
    total = tl.zeros([BLOCK_T], tl.float32)
    out = tl.zeros([BLOCK_T, BLOCK_D], tl.float32)
    end = tl.minimum(keys, (piece + 1) * stretch)
    for s0 in range(piece * stretch, tl.minimum(end, first + BLOCK_T) if CAUSAL else end, BLOCK_S):
        s = s0 + tl.arange(0, BLOCK_S)
        k, v = load_apart(k_SD, s, end, k_step, d, WIDTH), load_apart(v_SD, s, end, v_step, d, WIDTH)
        logits = _logits(q, k, bias_TS, row, s, queries, end, bias_query_step, bias_key_step, scale, BIAS, CAUSAL)
        top, total, out = fold(logits, v, top, total, out)
    # A query may see no key of a piece.
    some = tl.where(total > 0, total, 1.0)
    of_piece = piece * tl.num_programs(1) + bh
    store_rows(out_xBHTD + of_piece * queries * WIDTH, out / some[:, None], row, queries, d, WIDTH)
    tl.store(lse_xBHT + of_piece * queries + row, (top + tl.log2(some)) / LOG2E, mask=row < queries)


@tuned(("BLOCK_T", "BLOCK_S"), BACKWARD, KEY, wider=WIDER)
@triton.jit(do_not_specialize=["bucket"])
def _backward_queries(
    dout_BHTD: tl.tensor,
    q_BHTD: tl.tensor,
    k_BKSD: tl.tensor,
    v_BKSD: tl.tensor,
    bias_BHTS: tl.tensor,
    lse_BHT: tl.tensor,
    delta_BHT: tl.tensor,
    dq_BHTD: tl.tensor,
    heads: tl.tensor,
    groups: tl.tensor,
    queries: tl.tensor,
    keys: tl.tensor,
    k_row_step: tl.tensor,
    k_head_step: tl.tensor,
    k_step: tl.tensor,
    v_row_step: tl.tensor,
    v_head_step: tl.tensor,
    v_step: tl.tensor,
    bias_row_step: tl.tensor,
    bias_head_step: tl.tensor,
    bias_query_step: tl.tensor,
    bias_key_step: tl.tensor,
    scale: tl.tensor,
    bucket: tl.tensor,
    WIDTH: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BIAS: tl.constexpr,
    CAUSAL: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_S: tl.constexpr,
) -> None:
    bh = tl.program_id(1).to(tl.int64)
    b, h = bh // heads, bh % heads
    first = tl.program_id(0) * BLOCK_T
    row, d = first + tl.arange(0, BLOCK_T), tl.arange(0, BLOCK_D)
    q = load_rows(q_BHTD + bh * queries * WIDTH, row, queries, d, WIDTH)
    dout = load_rows(dout_BHTD + bh * queries * WIDTH, row, queries, d, WIDTH)
    lse = tl.load(lse_BHT + bh * queries + row, mask=row < queries, other=0.0) * LOG2E
    delta = tl.load(delta_BHT + bh * queries + row, mask=row < queries, other=0.0)
    k_SD = k_BKSD + b * k_row_step + h // groups * k_head_step
    v_SD = v_BKSD + b * v_row_step + h // groups * v_head_step
    bias_TS = bias_BHTS + b * bias_row_step + h * bias_head_step if BIAS else None
    dq = tl.zeros([BLOCK_T, BLOCK_D], tl.float32)
    for s0 in range(0, tl.minimum(keys, first + BLOCK_T) if CAUSAL else keys, BLOCK_S):
        s = s0 + tl.arange(0, BLOCK_S)
        k, v = load_apart(k_SD, s, keys, k_step, d, WIDTH), load_apart(v_SD, s, keys, v_step, d, WIDTH)
        logits = _logits(q, k, bias_TS, row, s, queries, keys, bias_query_step, bias_key_step, scale, BIAS, CAUSAL)
        dq, _ = query_gradients(logits, k, v, dout, lse, delta, dq)
    store_rows(dq_BHTD + bh * queries * WIDTH, dq * scale, row, queries, d, WIDTH)


@tuned(("BLOCK_T", "BLOCK_S"), BACKWARD, KEY, wider=WIDER_OF_KEYS)
@triton.jit(do_not_specialize=["bucket"])
def _backward_keys(
    dout_BHTD: tl.tensor,
    q_BHTD: tl.tensor,
    k_BKSD: tl.tensor,
    v_BKSD: tl.tensor,
    bias_BHTS: tl.tensor,
    lse_BHT: tl.tensor,
    delta_BHT: tl.tensor,
    dk_BKSD: tl.tensor,
    dv_BKSD: tl.tensor,
    heads: tl.tensor,
    groups: tl.tensor,
    queries: tl.tensor,
    keys: tl.tensor,
    k_row_step: tl.tensor,
    k_head_step: tl.tensor,
    k_step: tl.tensor,
    v_row_step: tl.tensor,
    v_head_step: tl.tensor,
    v_step: tl.tensor,
    bias_row_step: tl.tensor,
    bias_head_step: tl.tensor,
    bias_query_step: tl.tensor,
    bias_key_step: tl.tensor,
    scale: tl.tensor,
    bucket: tl.tensor,
    WIDTH: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BIAS: tl.constexpr,
    CAUSAL: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_S: tl.constexpr,
) -> None:
    bk = tl.program_id(1).to(tl.int64)
    kv_heads = heads // groups
    b, kv_head = bk // kv_heads, bk % kv_heads
    first = tl.program_id(0) * BLOCK_S
    s, d = first + tl.arange(0, BLOCK_S), tl.arange(0, BLOCK_D)
    k = load_apart(k_BKSD + b * k_row_step + kv_head * k_head_step, s, keys, k_step, d, WIDTH)
    v = load_apart(v_BKSD + b * v_row_step + kv_head * v_head_step, s, keys, v_step, d, WIDTH)
    dk = tl.zeros([BLOCK_S, BLOCK_D], tl.float32)
    dv = tl.zeros([BLOCK_S, BLOCK_D], tl.float32)
    for bh in range(bk * groups, (bk + 1) * groups):
        q_TD, dout_TD = q_BHTD + bh * queries * WIDTH, dout_BHTD + bh * queries * WIDTH
        bias_TS = bias_BHTS + b * bias_row_step + bh % heads * bias_head_step if BIAS else None
        for t0 in range(first // BLOCK_T * BLOCK_T if CAUSAL else 0, queries, BLOCK_T):
            row = t0 + tl.arange(0, BLOCK_T)
            q, dout = load_rows(q_TD, row, queries, d, WIDTH), load_rows(dout_TD, row, queries, d, WIDTH)
            # Rows after the last query have weight 0.
            lse = tl.load(lse_BHT + bh * queries + row, mask=row < queries, other=float("inf")) * LOG2E
            delta = tl.load(delta_BHT + bh * queries + row, mask=row < queries, other=0.0)
            logits = _logits(q, k, bias_TS, row, s, queries, keys, bias_query_step, bias_key_step, scale, BIAS, CAUSAL)
            dk, dv = tile_gradients(logits, q, dout, v, lse, delta, dk, dv)
    store_rows(dk_BKSD + bk * keys * WIDTH, dk * scale, s, keys, d, WIDTH)
    store_rows(dv_BKSD + bk * keys * WIDTH, dv, s, keys, d, WIDTH)


def forward(
    q_BHTD: Tensor, k_BKSD: Tensor, v_BKSD: Tensor, bias: Tensor | None, scale: float, *, causal: bool
) -> tuple[Tensor, Tensor]:
    """See `part.forward`; a query that sees no key has an output of 0 and -inf as logarithm."""
    k_BKSD, v_BKSD = in_rows(k_BKSD, v_BKSD)
    (q,), bias = _of_key_heads(k_BKSD, bias, q_BHTD)
    (rows, heads, queries, _), keys = q.shape, k_BKSD.shape[2]
    pieces, stretch = _pieces(rows * heads, keys) if q_BHTD.shape[2] == 1 else (1, keys)
    kind = q.dtype if pieces == 1 else torch.float32
    out_xBHTD = torch.empty(pieces, *q.shape, dtype=kind, device=q.device)
    lse_xBHT = torch.empty(pieces, rows, heads, queries, dtype=torch.float32, device=q.device)
    sizes, shape = _sizes(q, k_BKSD, v_BKSD, bias, causal and q_BHTD.shape[2] > 1)
    grid = lambda meta: (triton.cdiv(queries, meta["BLOCK_T"]), rows * heads, pieces)  # noqa: E731
    _forward[grid](q, k_BKSD, v_BKSD, bias, out_xBHTD, lse_xBHT, stretch, *sizes, scale, **shape)
    out, lse = (out_xBHTD[0], lse_xBHT[0]) if pieces == 1 else join(out_xBHTD, lse_xBHT)
    return out.to(q.dtype).view(q_BHTD.shape), lse.view(q_BHTD.shape[:3])


def backward(
    dout_BHTD: Tensor,
    out_BHTD: Tensor,
    lse_BHT: Tensor,
    q_BHTD: Tensor,
    k_BKSD: Tensor,
    v_BKSD: Tensor,
    bias: Tensor | None,
    scale: float,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """See `part.backward`, without a gradient of the bias."""
    k_BKSD, v_BKSD = in_rows(k_BKSD, v_BKSD)
    delta_BHT = (dout_BHTD.float() * out_BHTD.float()).sum(-1)
    by_key_head, bias = _of_key_heads(k_BKSD, bias, dout_BHTD, q_BHTD, lse_BHT, delta_BHT)
    dout, q, lse, delta = by_key_head
    dq, dk_BKSD, dv_BKSD = (x.new_empty(x.shape) for x in (q, k_BKSD, v_BKSD))
    inputs = (dout, q, k_BKSD, v_BKSD, bias, lse, delta)
    sizes, shape = _sizes(q, k_BKSD, v_BKSD, bias, causal and q_BHTD.shape[2] > 1)
    (rows, kv_heads, keys, _), (_, heads, queries, _) = k_BKSD.shape, q.shape
    by_query = lambda meta: (triton.cdiv(queries, meta["BLOCK_T"]), rows * heads)  # noqa: E731
    by_key = lambda meta: (triton.cdiv(keys, meta["BLOCK_S"]), rows * kv_heads)  # noqa: E731
    _backward_queries[by_query](*inputs, dq, *sizes, scale, **shape)
    _backward_keys[by_key](*inputs, dk_BKSD, dv_BKSD, *sizes, scale, **shape)
    return dq.view(q_BHTD.shape), dk_BKSD, dv_BKSD


def join(out_xBHTD: Tensor, lse_xBHT: Tensor) -> tuple[Tensor, Tensor]:
    """The softmax over all pieces of the keys from those over each."""
    # A query may see no key of any piece; a finite number in place of -inf gives all of them an output of 0.
    weight_xBHT = lse_xBHT.clamp(min=torch.finfo(lse_xBHT.dtype).min).softmax(0)
    return (out_xBHTD * weight_xBHT[..., None]).sum(0), lse_xBHT.logsumexp(0)


def _pieces(heads: int, keys: int) -> tuple[int, int]:
    """Into how many pieces the keys are divided, and the keys of each."""
    pieces = max(1, min(keys // KEYS_OF_A_PIECE, PROGRAMS // heads))
    stretch = triton.cdiv(keys, pieces)
    return triton.cdiv(keys, stretch), stretch


def _of_key_heads(k_BKSD: Tensor, bias: Tensor | None, *of_queries: Tensor) -> tuple[tuple[Tensor, ...], Tensor | None]:
    """What belongs to queries, contiguous, and the bias in its full shape; a single query per head as in the legend."""
    rows, heads, queries = of_queries[0].shape[:3]
    bias = None if bias is None else bias.expand(rows, heads, queries, k_BKSD.shape[2])
    if queries > 1:
        return tuple(x.contiguous() for x in of_queries), bias
    kv_heads = k_BKSD.shape[1]
    grouped = (x.contiguous().view(rows, kv_heads, heads // kv_heads, *x.shape[3:]) for x in of_queries)
    return tuple(grouped), None if bias is None else bias[:, :, 0].unflatten(1, (kv_heads, -1))


def _sizes(
    q_BHTD: Tensor, k_BKSD: Tensor, v_BKSD: Tensor, bias_BHTS: Tensor | None, causal: bool
) -> tuple[tuple[int, ...], dict[str, Any]]:
    (_, heads, queries, width), (_, kv_heads, keys, _) = q_BHTD.shape, k_BKSD.shape
    steps = (*k_BKSD.stride()[:3], *v_BKSD.stride()[:3], *((0,) * 4 if bias_BHTS is None else bias_BHTS.stride()))
    shape = {
        "WIDTH": width,
        "BLOCK_D": padded_width(width),
        "BIAS": bias_BHTS is not None,
        "CAUSAL": causal,
        "bucket": bucket_of(queries),
    }
    return (heads, heads // kv_heads, queries, keys, *steps), shape
