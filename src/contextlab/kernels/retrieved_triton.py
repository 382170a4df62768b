"""Attention to retrieved chunks in Triton: every query reads its own tokens from the bank by chunk id.

Logits are in units of log 2, because the hardware computes powers of 2. All tensors but the bank are contiguous; in the
bank only tokens and width are, its other strides are arguments. All sums are float32.

The output of a query has a local part too. With `JOINT` one softmax is over the keys of both parts, and `weight_H` is a
bias of the retrieved tokens' logits. Without it each part has its own, and `weight_H` is the gate between them.

Legend: B rows, H query heads, K key/value heads, T queries, D head width, n chunks of the bank, c tokens of a chunk,
m chunks retrieved, R = m*c.
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

TILES = ((4, 16, 4, 2), (2, 32, 4, 2), (1, 64, 4, 2), (2, 16, 2, 3), (1, 16, 1, 3))
KEY = ["WIDTH", "CHUNK", "JOINT", "bucket"]


@triton.jit
def _tokens(
    ids_Tm: tl.tensor,
    retrieved_Tm: tl.tensor,
    row: tl.tensor,
    r: tl.tensor,
    queries: tl.tensor,
    take: tl.tensor,
    chunks: tl.tensor,
    chunk_step: tl.tensor,
    CHUNK: tl.constexpr,
    WIDTH: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Offsets of the retrieved tokens of a tile in their head's bank, and which of them the bank has."""
    inside = (row < queries)[:, None] & (r < take * CHUNK)[None, :]
    slot = row[:, None] * take + (r // CHUNK)[None, :]
    retrieved = tl.load(retrieved_Tm + slot, mask=inside, other=0) != 0
    ids = tl.load(ids_Tm + slot, mask=retrieved, other=0)
    return ids * chunk_step + (r % CHUNK)[None, :] * WIDTH, retrieved & (ids >= 0) & (ids < chunks)


@tuned(("BLOCK_T", "BLOCK_R"), TILES, KEY)
@triton.jit(do_not_specialize=["bucket"])
def forward_kernel(
    local_BHTD: tl.tensor,
    local_lse_BHT: tl.tensor,
    q_BHTD: tl.tensor,
    k_BKncD: tl.tensor,
    v_BKncD: tl.tensor,
    ids_BHTm: tl.tensor,
    retrieved_BHTm: tl.tensor,
    weight_H: tl.tensor,
    out_BHTD: tl.tensor,
    memory_BHTD: tl.tensor,
    lse_BHT: tl.tensor,
    heads: tl.tensor,
    groups: tl.tensor,
    queries: tl.tensor,
    take: tl.tensor,
    chunks: tl.tensor,
    row_step: tl.tensor,
    head_step: tl.tensor,
    chunk_step: tl.tensor,
    scale: tl.tensor,
    bucket: tl.tensor,
    WIDTH: tl.constexpr,
    BLOCK_D: tl.constexpr,
    CHUNK: tl.constexpr,
    JOINT: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_R: tl.constexpr,
) -> None:
    """The output of every query from its local part and its tokens, and `lse` of the softmax that they are in."""
    bh = tl.program_id(1).to(tl.int64)
    row, d = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T), tl.arange(0, BLOCK_D)
    bank = bh // heads * row_step + bh % heads // groups * head_step
    ids_Tm, retrieved_Tm = ids_BHTm + bh * queries * take, retrieved_BHTm + bh * queries * take
    q = load_rows(q_BHTD + bh * queries * WIDTH, row, queries, d, WIDTH).to(tl.float32) * (scale * LOG2E)
    weight = tl.load(weight_H + bh % heads).to(tl.float32)
    if JOINT:
        # The local part is one token more, whose logit is the logarithm of its denominator and whose value its output.
        top = tl.load(local_lse_BHT + bh * queries + row, mask=row < queries, other=0.0) * LOG2E
        total = tl.full([BLOCK_T], 1.0, tl.float32)
        out = load_rows(local_BHTD + bh * queries * WIDTH, row, queries, d, WIDTH).to(tl.float32)
    else:
        top = tl.full([BLOCK_T], NEVER, tl.float32)
        total = tl.zeros([BLOCK_T], tl.float32)
        out = tl.zeros([BLOCK_T, BLOCK_D], tl.float32)
    for r0 in range(0, take * CHUNK, BLOCK_R):
        r = r0 + tl.arange(0, BLOCK_R)
        token, retrieved = _tokens(ids_Tm, retrieved_Tm, row, r, queries, take, chunks, chunk_step, CHUNK, WIDTH)
        offset = bank + token[:, :, None] + d[None, None, :]
        mask = retrieved[:, :, None] & (d < WIDTH)[None, None, :]
        k = tl.load(k_BKncD + offset, mask=mask, other=0.0).to(tl.float32)
        logits = tl.sum(k * q[:, None, :], 2)
        if JOINT:
            logits += weight * LOG2E
        logits = tl.where(retrieved, logits, NEVER)
        higher = tl.maximum(top, tl.max(logits, 1))
        # A query that has seen no token yet has no highest logit to subtract.
        ground = tl.where(higher == NEVER, 0.0, higher)
        shrink = tl.exp2(top - ground)
        weights = tl.exp2(logits - ground[:, None])
        v = tl.load(v_BKncD + offset, mask=mask, other=0.0).to(tl.float32)
        total = total * shrink + tl.sum(weights, 1)
        out = out * shrink[:, None] + tl.sum(weights[:, :, None] * v, 1)
        top = higher
    some = total > 0
    out = out / tl.where(some, total, 1.0)[:, None]
    lse = tl.where(some, (top + tl.log2(tl.where(some, total, 1.0))) / LOG2E, NEVER)
    tl.store(lse_BHT + bh * queries + row, lse, mask=row < queries)
    if not JOINT:
        store_rows(memory_BHTD + bh * queries * WIDTH, out, row, queries, d, WIDTH)
        local = load_rows(local_BHTD + bh * queries * WIDTH, row, queries, d, WIDTH).to(tl.float32)
        out = tl.where(some[:, None], local + tl.sigmoid(weight) * (out - local), local)
    store_rows(out_BHTD + bh * queries * WIDTH, out, row, queries, d, WIDTH)


@tuned(
    ("BLOCK_T", "BLOCK_R"), TILES, ["WIDTH", "CHUNK", "JOINT", "bucket", "INTO_BANK"], reset=["dk_BKncD", "dv_BKncD"]
)
@triton.jit(do_not_specialize=["bucket"])
def backward_kernel(
    dout_BHTD: tl.tensor,
    local_BHTD: tl.tensor,
    q_BHTD: tl.tensor,
    k_BKncD: tl.tensor,
    v_BKncD: tl.tensor,
    ids_BHTm: tl.tensor,
    retrieved_BHTm: tl.tensor,
    weight_H: tl.tensor,
    memory_BHTD: tl.tensor,
    lse_BHT: tl.tensor,
    dlocal_BHTD: tl.tensor,
    dq_BHTD: tl.tensor,
    dweight_BHT: tl.tensor,
    dk_BKncD: tl.tensor,
    dv_BKncD: tl.tensor,
    heads: tl.tensor,
    groups: tl.tensor,
    queries: tl.tensor,
    take: tl.tensor,
    chunks: tl.tensor,
    row_step: tl.tensor,
    head_step: tl.tensor,
    chunk_step: tl.tensor,
    scale: tl.tensor,
    bucket: tl.tensor,
    WIDTH: tl.constexpr,
    BLOCK_D: tl.constexpr,
    CHUNK: tl.constexpr,
    JOINT: tl.constexpr,
    INTO_BANK: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_R: tl.constexpr,
) -> None:
    """The gradients of what `forward_kernel` reads; `memory` and `lse` are of the softmax that the tokens are in."""
    bh = tl.program_id(1).to(tl.int64)
    row, d = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T), tl.arange(0, BLOCK_D)
    bank = bh // heads * row_step + bh % heads // groups * head_step
    ids_Tm, retrieved_Tm = ids_BHTm + bh * queries * take, retrieved_BHTm + bh * queries * take
    dbank = bh // groups * chunks * CHUNK * WIDTH
    lse = tl.load(lse_BHT + bh * queries + row, mask=row < queries, other=NEVER)
    some = (lse > NEVER)[:, None]
    lse = tl.where(lse > NEVER, lse, 0.0) * LOG2E
    weight = tl.load(weight_H + bh % heads).to(tl.float32)
    q = load_rows(q_BHTD + bh * queries * WIDTH, row, queries, d, WIDTH).to(tl.float32)
    dmemory = load_rows(dout_BHTD + bh * queries * WIDTH, row, queries, d, WIDTH).to(tl.float32)
    memory = load_rows(memory_BHTD + bh * queries * WIDTH, row, queries, d, WIDTH).to(tl.float32)
    if JOINT:
        dbias = tl.zeros([BLOCK_T], tl.float32)
    else:
        local = load_rows(local_BHTD + bh * queries * WIDTH, row, queries, d, WIDTH).to(tl.float32)
        gate, dout = tl.sigmoid(weight), dmemory
        dmemory = tl.where(some, gate * dout, 0.0)
        store_rows(dlocal_BHTD + bh * queries * WIDTH, dout - dmemory, row, queries, d, WIDTH)
        dgate = tl.sum(tl.where(some, dout * (memory - local), 0.0), 1) * gate * (1 - gate)
        tl.store(dweight_BHT + bh * queries + row, dgate, mask=row < queries)
    delta = tl.sum(dmemory * memory, 1)
    dq = tl.zeros([BLOCK_T, BLOCK_D], tl.float32)
    for r0 in range(0, take * CHUNK, BLOCK_R):
        r = r0 + tl.arange(0, BLOCK_R)
        token, retrieved = _tokens(ids_Tm, retrieved_Tm, row, r, queries, take, chunks, chunk_step, CHUNK, WIDTH)
        offset = bank + token[:, :, None] + d[None, None, :]
        mask = retrieved[:, :, None] & (d < WIDTH)[None, None, :]
        k = tl.load(k_BKncD + offset, mask=mask, other=0.0).to(tl.float32)
        v = tl.load(v_BKncD + offset, mask=mask, other=0.0).to(tl.float32)
        logits = tl.sum(k * q[:, None, :], 2) * (scale * LOG2E)
        if JOINT:
            logits += weight * LOG2E
        weights = tl.exp2(tl.where(retrieved, logits, NEVER) - lse[:, None])
        dlogits = weights * (tl.sum(v * dmemory[:, None, :], 2) - delta[:, None])
        if JOINT:
            dbias += tl.sum(dlogits, 1)
        dlogits = dlogits * scale
        dq += tl.sum(dlogits[:, :, None] * k, 1)
        if INTO_BANK:
            token, _ = _tokens(ids_Tm, retrieved_Tm, row, r, queries, take, chunks, CHUNK * WIDTH, CHUNK, WIDTH)
            offset = dbank + token[:, :, None] + d[None, None, :]
            tl.atomic_add(dk_BKncD + offset, dlogits[:, :, None] * q[:, None, :], mask=mask)
            tl.atomic_add(dv_BKncD + offset, weights[:, :, None] * dmemory[:, None, :], mask=mask)
    store_rows(dq_BHTD + bh * queries * WIDTH, dq, row, queries, d, WIDTH)
    if JOINT:
        tl.store(dweight_BHT + bh * queries + row, dbias, mask=row < queries)


def launch(k_BKncD: Tensor, ids_BHTm: Tensor, *, joint: bool) -> tuple[Any, tuple[int, ...], Any]:
    """Grid, sizes and constants of a launch."""
    rows, heads, queries, take = ids_BHTm.shape
    _, kv_heads, chunks, size, width = k_BKncD.shape
    shape = {
        "WIDTH": width,
        "BLOCK_D": padded_width(width),
        "CHUNK": size,
        "JOINT": joint,
        "bucket": bucket_of(queries),
    }
    sizes = (heads, heads // kv_heads, queries, take, chunks)
    return lambda meta: (triton.cdiv(queries, meta["BLOCK_T"]), rows * heads), sizes, shape


def bank_gradients(k_BKncD: Tensor, v_BKncD: Tensor, into_bank: bool) -> tuple[Tensor, Tensor]:
    """Zeros to add the bank's gradients to, or nothing."""
    dk, dv = (
        torch.zeros(x.shape if into_bank else (0,), dtype=torch.float32, device=x.device) for x in (k_BKncD, v_BKncD)
    )
    return dk, dv


def in_one_step(k_BKncD: Tensor, v_BKncD: Tensor) -> tuple[Tensor, Tensor]:
    """The bank itself where keys and values have the same strides and contiguous chunks; else a copy."""
    if k_BKncD.stride() == v_BKncD.stride() and k_BKncD.stride()[3:] == (k_BKncD.shape[4], 1):
        return k_BKncD, v_BKncD
    return k_BKncD.contiguous(), v_BKncD.contiguous()
