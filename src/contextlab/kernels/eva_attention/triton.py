"""EVA attention in Triton: one online softmax over tiles of local keys, then over tiles of chunks.

Logits are in units of log 2, because the hardware computes powers of 2. All tensors are contiguous, all sums float32.
A query's position is the index of its own key; it sees the keys from `overlap` before its window up to its own.

Legend: B rows, H query heads, K key/value heads, T queries, S local keys, n chunks, D head width, x parts of the
queries.
"""

# mypy: allow-untyped-decorators
# ruff: noqa: ARG001 - `bucket` is read by the tuner only.

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from contextlab.kernels.eva_attention.triton_logits import chunk_logits, first_seen, local_logits, visible_chunks
from contextlab.kernels.tiling import (
    LOG2E,
    NEVER,
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
KEY = ["WIDTH", "COUNTS", "bucket"]
STRETCH = 8192
MOST_STRETCHES = 8


@tuned(("BLOCK_T", "BLOCK_S"), FORWARD, KEY, wider=WIDER)
@triton.jit(do_not_specialize=["bucket"])
def _forward(
    q_BHTD: tl.tensor,
    k_BKSD: tl.tensor,
    v_BKSD: tl.tensor,
    chunk_k_BKnD: tl.tensor,
    chunk_v_BKnD: tl.tensor,
    counts_BT: tl.tensor,
    chunk_bias_H: tl.tensor,
    out_BHTD: tl.tensor,
    lse_BHT: tl.tensor,
    heads: tl.tensor,
    groups: tl.tensor,
    queries: tl.tensor,
    keys: tl.tensor,
    chunks: tl.tensor,
    window: tl.tensor,
    overlap: tl.tensor,
    scale: tl.tensor,
    bucket: tl.tensor,
    WIDTH: tl.constexpr,
    BLOCK_D: tl.constexpr,
    COUNTS: tl.constexpr,
    BIAS: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_S: tl.constexpr,
) -> None:
    bh = tl.program_id(1).to(tl.int64)
    bk = bh // groups
    first = tl.program_id(0) * BLOCK_T
    row, d = first + tl.arange(0, BLOCK_T), tl.arange(0, BLOCK_D)
    position, lowest = row + (keys - queries), first + keys - queries
    q = load_rows(q_BHTD + bh * queries * WIDTH, row, queries, d, WIDTH)
    top = tl.full([BLOCK_T], NEVER, tl.float32)
    total = tl.zeros([BLOCK_T], tl.float32)
    out = tl.zeros([BLOCK_T, BLOCK_D], tl.float32)
    k_SD, v_SD = k_BKSD + bk * keys * WIDTH, v_BKSD + bk * keys * WIDTH
    begin = first_seen(lowest, window, overlap)
    in_one_window = lowest // window == tl.minimum(lowest + BLOCK_T - 1, keys - 1) // window
    seen_by_all = begin + tl.where(in_one_window, (lowest + 1 - begin) // BLOCK_S * BLOCK_S, 0)
    end = tl.minimum(keys, lowest + BLOCK_T)
    for MASKED in tl.static_range(2):
        for s0 in range(seen_by_all if MASKED else begin, end if MASKED else seen_by_all, BLOCK_S):
            s = s0 + tl.arange(0, BLOCK_S)
            k, v = load_rows(k_SD, s, keys, d, WIDTH), load_rows(v_SD, s, keys, d, WIDTH)
            logits = local_logits(q, k, position, s, window, overlap, scale, MASKED)
            top, total, out = fold(logits, v, top, total, out)
    counts = visible_chunks(counts_BT, bh // heads * queries, row, queries, chunks, COUNTS)
    bias = tl.load(chunk_bias_H + bh % heads).to(tl.float32) if BIAS else 0.0
    k_nD, v_nD = chunk_k_BKnD + bk * chunks * WIDTH, chunk_v_BKnD + bk * chunks * WIDTH
    for n0 in range(0, tl.max(counts, 0), BLOCK_S):
        n = n0 + tl.arange(0, BLOCK_S)
        k, v = load_rows(k_nD, n, chunks, d, WIDTH), load_rows(v_nD, n, chunks, d, WIDTH)
        top, total, out = fold(chunk_logits(q, k, n, counts, bias, scale), v, top, total, out)
    # Rows after the last query may see no key; they are not stored.
    total = tl.where(row < queries, total, 1.0)
    store_rows(out_BHTD + bh * queries * WIDTH, out / total[:, None], row, queries, d, WIDTH)
    tl.store(lse_BHT + bh * queries + row, (top + tl.log2(total)) / LOG2E, mask=row < queries)


@tuned(("BLOCK_T", "BLOCK_S"), BACKWARD, KEY, wider=WIDER)
@triton.jit(do_not_specialize=["bucket"])
def _backward_queries(
    dout_BHTD: tl.tensor,
    q_BHTD: tl.tensor,
    k_BKSD: tl.tensor,
    v_BKSD: tl.tensor,
    chunk_k_BKnD: tl.tensor,
    chunk_v_BKnD: tl.tensor,
    counts_BT: tl.tensor,
    chunk_bias_H: tl.tensor,
    lse_BHT: tl.tensor,
    delta_BHT: tl.tensor,
    dq_BHTD: tl.tensor,
    dbias_BHT: tl.tensor,
    heads: tl.tensor,
    groups: tl.tensor,
    queries: tl.tensor,
    keys: tl.tensor,
    chunks: tl.tensor,
    window: tl.tensor,
    overlap: tl.tensor,
    scale: tl.tensor,
    bucket: tl.tensor,
    WIDTH: tl.constexpr,
    BLOCK_D: tl.constexpr,
    COUNTS: tl.constexpr,
    BIAS: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_S: tl.constexpr,
) -> None:
    bh = tl.program_id(1).to(tl.int64)
    bk = bh // groups
    first = tl.program_id(0) * BLOCK_T
    row, d = first + tl.arange(0, BLOCK_T), tl.arange(0, BLOCK_D)
    position, lowest = row + (keys - queries), first + keys - queries
    q = load_rows(q_BHTD + bh * queries * WIDTH, row, queries, d, WIDTH)
    dout = load_rows(dout_BHTD + bh * queries * WIDTH, row, queries, d, WIDTH)
    lse = tl.load(lse_BHT + bh * queries + row, mask=row < queries, other=0.0) * LOG2E
    delta = tl.load(delta_BHT + bh * queries + row, mask=row < queries, other=0.0)
    k_SD, v_SD = k_BKSD + bk * keys * WIDTH, v_BKSD + bk * keys * WIDTH
    dq = tl.zeros([BLOCK_T, BLOCK_D], tl.float32)
    for s0 in range(first_seen(lowest, window, overlap), tl.minimum(keys, lowest + BLOCK_T), BLOCK_S):
        s = s0 + tl.arange(0, BLOCK_S)
        k, v = load_rows(k_SD, s, keys, d, WIDTH), load_rows(v_SD, s, keys, d, WIDTH)
        logits = local_logits(q, k, position, s, window, overlap, scale, True)
        dq, _ = query_gradients(logits, k, v, dout, lse, delta, dq)
    counts = visible_chunks(counts_BT, bh // heads * queries, row, queries, chunks, COUNTS)
    bias = tl.load(chunk_bias_H + bh % heads).to(tl.float32) if BIAS else 0.0
    k_nD, v_nD = chunk_k_BKnD + bk * chunks * WIDTH, chunk_v_BKnD + bk * chunks * WIDTH
    dbias = tl.zeros([BLOCK_T], tl.float32)
    for n0 in range(0, tl.max(counts, 0), BLOCK_S):
        n = n0 + tl.arange(0, BLOCK_S)
        k, v = load_rows(k_nD, n, chunks, d, WIDTH), load_rows(v_nD, n, chunks, d, WIDTH)
        dq, dlogits = query_gradients(chunk_logits(q, k, n, counts, bias, scale), k, v, dout, lse, delta, dq)
        dbias += tl.sum(dlogits, 1)
    store_rows(dq_BHTD + bh * queries * WIDTH, dq * scale, row, queries, d, WIDTH)
    tl.store(dbias_BHT + bh * queries + row, dbias, mask=row < queries)


@tuned(("BLOCK_T", "BLOCK_S"), BACKWARD, KEY, wider=WIDER_OF_KEYS)
@triton.jit(do_not_specialize=["bucket"])
def _backward_keys(
    dout_BHTD: tl.tensor,
    q_BHTD: tl.tensor,
    k_BKSD: tl.tensor,
    v_BKSD: tl.tensor,
    lse_BHT: tl.tensor,
    delta_BHT: tl.tensor,
    dk_BKSD: tl.tensor,
    dv_BKSD: tl.tensor,
    groups: tl.tensor,
    queries: tl.tensor,
    keys: tl.tensor,
    window: tl.tensor,
    overlap: tl.tensor,
    scale: tl.tensor,
    bucket: tl.tensor,
    WIDTH: tl.constexpr,
    BLOCK_D: tl.constexpr,
    COUNTS: tl.constexpr,
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
    older = keys - queries
    begin = tl.maximum(0, first - older) // BLOCK_T * BLOCK_T
    last_window = (first + BLOCK_S - 1 + overlap) // window
    end = tl.minimum(queries, last_window * window + window - older)
    for bh in range(bk * groups, (bk + 1) * groups):
        q_TD, dout_TD = q_BHTD + bh * queries * WIDTH, dout_BHTD + bh * queries * WIDTH
        for t0 in range(begin, end, BLOCK_T):
            row = t0 + tl.arange(0, BLOCK_T)
            q, dout = load_rows(q_TD, row, queries, d, WIDTH), load_rows(dout_TD, row, queries, d, WIDTH)
            # Rows after the last query have weight 0.
            lse = tl.load(lse_BHT + bh * queries + row, mask=row < queries, other=float("inf")) * LOG2E
            delta = tl.load(delta_BHT + bh * queries + row, mask=row < queries, other=0.0)
            logits = local_logits(q, k, row + older, s, window, overlap, scale, True)
            dk, dv = tile_gradients(logits, q, dout, v, lse, delta, dk, dv)
    store_rows(dk_BKSD + bk * keys * WIDTH, dk * scale, s, keys, d, WIDTH)
    store_rows(dv_BKSD + bk * keys * WIDTH, dv, s, keys, d, WIDTH)


@tuned(("BLOCK_T", "BLOCK_S"), BACKWARD, KEY, wider=WIDER_OF_KEYS)
@triton.jit(do_not_specialize=["bucket"])
def _backward_chunks(
    dout_BHTD: tl.tensor,
    q_BHTD: tl.tensor,
    chunk_k_BKnD: tl.tensor,
    chunk_v_BKnD: tl.tensor,
    counts_BT: tl.tensor,
    chunk_bias_H: tl.tensor,
    lse_BHT: tl.tensor,
    delta_BHT: tl.tensor,
    dk_xBHnD: tl.tensor,
    dv_xBHnD: tl.tensor,
    heads: tl.tensor,
    groups: tl.tensor,
    queries: tl.tensor,
    chunks: tl.tensor,
    stretch: tl.tensor,
    scale: tl.tensor,
    bucket: tl.tensor,
    WIDTH: tl.constexpr,
    BLOCK_D: tl.constexpr,
    COUNTS: tl.constexpr,
    BIAS: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_S: tl.constexpr,
) -> None:
    bh, part = tl.program_id(1).to(tl.int64), tl.program_id(2)
    bk = bh // groups
    first = tl.program_id(0) * BLOCK_S
    n, d = first + tl.arange(0, BLOCK_S), tl.arange(0, BLOCK_D)
    k = load_rows(chunk_k_BKnD + bk * chunks * WIDTH, n, chunks, d, WIDTH)
    v = load_rows(chunk_v_BKnD + bk * chunks * WIDTH, n, chunks, d, WIDTH)
    bias = tl.load(chunk_bias_H + bh % heads).to(tl.float32) if BIAS else 0.0
    dk = tl.zeros([BLOCK_S, BLOCK_D], tl.float32)
    dv = tl.zeros([BLOCK_S, BLOCK_D], tl.float32)
    q_TD, dout_TD = q_BHTD + bh * queries * WIDTH, dout_BHTD + bh * queries * WIDTH
    end = tl.minimum(queries, (part + 1) * stretch)
    for t0 in range(part * stretch, end, BLOCK_T):
        row = t0 + tl.arange(0, BLOCK_T)
        counts = visible_chunks(counts_BT, bh // heads * queries, row, end, chunks, COUNTS)
        if tl.max(counts, 0) > first:
            q, dout = load_rows(q_TD, row, end, d, WIDTH), load_rows(dout_TD, row, end, d, WIDTH)
            lse = tl.load(lse_BHT + bh * queries + row, mask=row < end, other=0.0) * LOG2E
            delta = tl.load(delta_BHT + bh * queries + row, mask=row < end, other=0.0)
            logits = chunk_logits(q, k, n, counts, bias, scale)
            dk, dv = tile_gradients(logits, q, dout, v, lse, delta, dk, dv)
    offset = (part * tl.num_programs(1) + bh) * chunks * WIDTH
    store_rows(dk_xBHnD + offset, dk * scale, n, chunks, d, WIDTH)
    store_rows(dv_xBHnD + offset, dv, n, chunks, d, WIDTH)


def forward(
    q_BHTD: Tensor,
    k_BKSD: Tensor,
    v_BKSD: Tensor,
    chunk_k_BKnD: Tensor,
    chunk_v_BKnD: Tensor,
    _bias: None,
    counts_BT: Tensor | None,
    chunk_bias_H: Tensor | None,
    scale: float,
    window: int,
    overlap: int,
) -> tuple[Tensor, Tensor]:
    """See `blocked.forward`; without a bias."""
    inputs = _contiguous(q_BHTD, k_BKSD, v_BKSD, chunk_k_BKnD, chunk_v_BKnD, counts_BT, chunk_bias_H)
    out_BHTD, lse_BHT = torch.empty_like(inputs[0]), q_BHTD.new_empty(q_BHTD.shape[:3], dtype=torch.float32)
    grid, sizes, shape = _launch(inputs, window, overlap)
    _forward[grid](*inputs, out_BHTD, lse_BHT, *sizes, scale, **shape)
    return out_BHTD, lse_BHT


def backward(
    dout_BHTD: Tensor,
    q_BHTD: Tensor,
    k_BKSD: Tensor,
    v_BKSD: Tensor,
    chunk_k_BKnD: Tensor,
    chunk_v_BKnD: Tensor,
    _bias: None,
    counts_BT: Tensor | None,
    chunk_bias_H: Tensor | None,
    out_BHTD: Tensor,
    lse_BHT: Tensor,
    scale: float,
    window: int,
    overlap: int,
    _into_bias: bool,
    into_chunk_bias: bool,
) -> tuple[Tensor, ...]:
    """See `blocked.backward`; without a bias."""
    tensors = (dout_BHTD, q_BHTD, k_BKSD, v_BKSD, chunk_k_BKnD, chunk_v_BKnD, counts_BT, chunk_bias_H)
    dout, q, k, v, chunk_k, chunk_v, counts, chunk_bias = inputs = _contiguous(*tensors)
    rows, heads, queries, width = q.shape
    lse_BHT = lse_BHT.contiguous()
    delta_BHT, dbias_BHT = (dout.float() * out_BHTD.float()).sum(-1), torch.empty_like(lse_BHT)
    dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
    grid, sizes, shape = _launch(inputs[1:], window, overlap)
    of_queries = (lse_BHT, delta_BHT)
    _backward_queries[grid](*inputs, *of_queries, dq, dbias_BHT, *sizes, scale, **shape)
    _, groups, _, keys, chunks, *_ = sizes
    without = {name: value for name, value in shape.items() if name != "BIAS"}
    _backward_keys[lambda meta: (triton.cdiv(keys, meta["BLOCK_S"]), rows * heads // groups)](
        dout, q, k, v, *of_queries, dk, dv, groups, queries, keys, window, overlap, scale, **without
    )
    stretches = min(triton.cdiv(queries, STRETCH), MOST_STRETCHES)
    parts = (stretches, rows, heads, chunks, width)
    dchunk_k, dchunk_v = (torch.empty(parts, dtype=torch.float32, device=q.device) for _ in range(2))
    if chunks:
        by_chunk = lambda meta: (triton.cdiv(chunks, meta["BLOCK_S"]), rows * heads, stretches)  # noqa: E731
        arguments = (*of_queries, dchunk_k, dchunk_v, heads, groups, queries, chunks, triton.cdiv(queries, stretches))
        _backward_chunks[by_chunk](dout, q, chunk_k, chunk_v, counts, chunk_bias, *arguments, scale, **shape)
    shared = (stretches, rows, heads // groups, groups, chunks, width)
    of_chunks = (x.view(shared).sum((0, 3)).to(chunk_k.dtype) for x in (dchunk_k, dchunk_v))
    of_bias = dbias_BHT.sum((0, 2)) if into_chunk_bias else dbias_BHT.new_empty(0)
    if chunk_bias is not None:
        of_bias = of_bias.to(chunk_bias.dtype)
    return dq, dk, dv, *of_chunks, dbias_BHT.new_empty(0), of_bias


def _contiguous(*tensors: Tensor | None) -> tuple[Any, ...]:
    return tuple(x if x is None else x.contiguous() for x in tensors)


def _launch(inputs: tuple[Any, ...], window: int, overlap: int) -> tuple[Any, tuple[int, ...], dict[str, Any]]:
    q_BHTD, k_BKSD, _, chunk_k_BKnD, _, counts_BT, chunk_bias_H = inputs
    rows, heads, queries, width = q_BHTD.shape
    shape = {
        "WIDTH": width,
        "BLOCK_D": padded_width(width),
        "COUNTS": counts_BT is not None,
        "BIAS": chunk_bias_H is not None,
        "bucket": bucket_of(queries),
    }
    sizes = (heads, heads // k_BKSD.shape[1], queries, k_BKSD.shape[2], chunk_k_BKnD.shape[2], window, overlap)
    return lambda meta: (triton.cdiv(queries, meta["BLOCK_T"]), rows * heads), sizes, shape
