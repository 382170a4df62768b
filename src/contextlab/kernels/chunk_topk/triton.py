"""Chunk search in Triton: every program reads one part of the bank for a few queries and keeps the best chunks.

A score and its chunk's id are packed into one integer. Integers compare as the scores do; among equal scores the lower
id is larger. The result therefore does not depend on the order of the comparisons.

Legend: B rows, H query heads, K key/value heads, T queries, D head width, n chunks of the bank, m chunks retrieved,
x = parts of the bank times m.
"""

# mypy: allow-untyped-decorators
# ruff: noqa: ARG001 - `bucket` is read by the tuner only.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from contextlab.kernels.tiling import NEVER, PRECISION, WIDER, bucket_of, padded_width, tuned

LOWEST: tl.constexpr = tl.constexpr(-(2**63))
HIGHEST: tl.constexpr = tl.constexpr(2**63 - 1)
LOW_BITS: tl.constexpr = tl.constexpr(2**31 - 1)
NO_SCORE: tl.constexpr = tl.constexpr(-(2**31))
PROGRAMS = 264
SHORTEST_STRETCH = 512

SEARCH = ((64, 64, 4, 3), (64, 128, 8, 3), (32, 128, 4, 3), (16, 64, 4, 2))


@tuned(("BLOCK_T", "BLOCK_N"), SEARCH, ["WIDTH", "TAKE", "bucket"], wider=WIDER)
@triton.jit(do_not_specialize=["bucket"])
def _search(
    q_BHTD: tl.tensor,
    mean_BKnD: tl.tensor,
    count_B: tl.tensor,
    key_BHTx: tl.tensor,
    heads: tl.tensor,
    groups: tl.tensor,
    queries: tl.tensor,
    chunks: tl.tensor,
    stretch: tl.tensor,
    row_step: tl.tensor,
    head_step: tl.tensor,
    chunk_step: tl.tensor,
    bucket: tl.tensor,
    WIDTH: tl.constexpr,
    BLOCK_D: tl.constexpr,
    TAKE: tl.constexpr,
    SLOTS: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_N: tl.constexpr,
) -> None:
    bh, part = tl.program_id(1).to(tl.int64), tl.program_id(2)
    row, d, slot = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T), tl.arange(0, BLOCK_D), tl.arange(0, SLOTS)
    mean_nD = mean_BKnD + bh // heads * row_step + bh % heads // groups * head_step
    begin = part * stretch
    # Clamped, so that no address lies outside of the bank, and then narrowed.
    count = tl.maximum(tl.minimum(tl.load(count_B + bh // heads), chunks), 0).to(tl.int32)
    end = tl.minimum(begin + stretch, count)
    inside = (row < queries)[:, None] & (d < WIDTH)[None, :]
    q = tl.load(q_BHTD + bh * queries * WIDTH + row[:, None] * WIDTH + d[None, :], mask=inside, other=0.0)
    # Empty slots hold different values, so that one is filled at a time; slots beyond TAKE are never the worst.
    empty = tl.where(slot < TAKE, slot.to(tl.int64) + LOWEST, HIGHEST)
    top = tl.zeros([BLOCK_T, SLOTS], tl.int64) + empty[None, :]
    worst = tl.min(top, 1)
    for n0 in range(begin, end, BLOCK_N):
        n = n0 + tl.arange(0, BLOCK_N)
        pointers = mean_nD + n[:, None].to(tl.int64) * chunk_step + d[None, :]
        mean = tl.load(pointers, mask=(n < end)[:, None] & (d < WIDTH)[None, :], other=0.0)
        score = tl.dot(q, tl.trans(mean), input_precision=PRECISION)
        score = tl.where(score == 0, 0.0, score)  # -0.0 becomes 0.0
        bits = score.to(tl.int32, bitcast=True)
        bits = bits ^ ((bits >> 31) & LOW_BITS)
        bits = tl.where((n < end)[None, :] & (score != NEVER), bits, NO_SCORE)
        # A later chunk enters only with a higher score, so keys are computed only where there is one.
        if tl.max((tl.max(bits, 1) > (worst >> 32).to(tl.int32)).to(tl.int32), 0) > 0:
            key = (bits.to(tl.int64) << 32) + (n ^ LOW_BITS)[None, :].to(tl.int64)
            key = tl.where(bits == NO_SCORE, LOWEST, key)
            best = tl.max(key, 1)
            while tl.max((best > worst).to(tl.int32), 0) > 0:
                top = tl.where((top == worst[:, None]) & (best > worst)[:, None], best[:, None], top)
                key = tl.where(key == best[:, None], LOWEST, key)
                best, worst = tl.max(key, 1), tl.min(top, 1)
    width = tl.num_programs(2) * TAKE
    pointers = key_BHTx + (bh * queries + row[:, None]) * width + part * TAKE + slot[None, :]
    tl.store(pointers, top, mask=(row < queries)[:, None] & (slot < TAKE)[None, :])


def search(q_BHTD: Tensor, mean_BKnD: Tensor, count_B: Tensor, take: int) -> tuple[Tensor, Tensor]:
    """See `contextlab.kernels.chunk_topk.chunk_topk`."""
    rows, heads, queries, width = q_BHTD.shape
    kv_heads, chunks = mean_BKnD.shape[1:3]
    kind = torch.promote_types(q_BHTD.dtype, mean_BKnD.dtype)
    q_BHTD, mean_BKnD = q_BHTD.to(kind).contiguous(), mean_BKnD.to(kind)
    if mean_BKnD.stride(3) != 1:
        mean_BKnD = mean_BKnD.contiguous()
    tiles = rows * heads * triton.cdiv(queries, 64)
    parts = max(1, min(PROGRAMS // max(tiles, 1), chunks // SHORTEST_STRETCH))
    key_BHTx = torch.empty(rows, heads, queries, parts * take, dtype=torch.int64, device=q_BHTD.device)
    if 0 not in (take, queries):
        _search[lambda meta: (triton.cdiv(queries, meta["BLOCK_T"]), rows * heads, parts)](
            q_BHTD,
            mean_BKnD,
            count_B.contiguous(),
            key_BHTx,
            heads,
            heads // kv_heads,
            queries,
            chunks,
            triton.cdiv(chunks, parts),
            *mean_BKnD.stride()[:3],
            WIDTH=width,
            BLOCK_D=padded_width(width),
            TAKE=take,
            SLOTS=triton.next_power_of_2(take),
            bucket=bucket_of(queries),
        )
    return _unpack(key_BHTx.sort(dim=-1, descending=True).values[..., :take])


def _unpack(key_BHTm: Tensor) -> tuple[Tensor, Tensor]:
    bits = key_BHTm >> 32
    none = bits == NO_SCORE.value
    bits = bits.to(torch.int32)
    score = (bits ^ ((bits >> 31) & LOW_BITS.value)).view(torch.float32)
    ids = ~key_BHTm & LOW_BITS.value
    return ids.masked_fill(none, 0), score.masked_fill(none, float("-inf"))
