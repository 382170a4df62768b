"""Logits of one tile of EVA attention in Triton, in units of log 2, and which of its keys are seen.

A query's position is the index of its own key; it sees the keys from `overlap` before its window up to its own.

Legend: B rows, T queries.
"""

# mypy: allow-untyped-decorators

from __future__ import annotations

import triton
import triton.language as tl

from contextlab.kernels.tiling import LOG2E, NEVER, PRECISION


@triton.jit
def first_seen(position: tl.tensor, window: tl.tensor, overlap: tl.tensor) -> tl.tensor:
    """The first local key that a query sees."""
    return tl.maximum(position // window * window - overlap, 0)


@triton.jit
def local_logits(
    q: tl.tensor,
    k: tl.tensor,
    position: tl.tensor,
    s: tl.tensor,
    window: tl.tensor,
    overlap: tl.tensor,
    scale: tl.tensor,
    MASKED: tl.constexpr,
) -> tl.tensor:
    """Logits of local keys; without MASKED every query of the tile must see all of them."""
    logits = tl.dot(q, tl.trans(k), input_precision=PRECISION) * (scale * LOG2E)
    if MASKED:
        visible = (s[None, :] <= position[:, None]) & (s[None, :] >= first_seen(position, window, overlap)[:, None])
        logits = tl.where(visible, logits, NEVER)
    return logits


@triton.jit
def chunk_logits(
    q: tl.tensor, k: tl.tensor, n: tl.tensor, counts: tl.tensor, bias: tl.tensor, scale: tl.tensor
) -> tl.tensor:
    """Logits of chunks, of which every query sees the first `counts`."""
    logits = tl.dot(q, tl.trans(k), input_precision=PRECISION) * (scale * LOG2E) + bias * LOG2E
    return tl.where(n[None, :] < counts[:, None], logits, NEVER)


@triton.jit
def visible_chunks(
    counts_BT: tl.tensor, before: tl.tensor, row: tl.tensor, end: tl.tensor, chunks: tl.tensor, COUNTS: tl.constexpr
) -> tl.tensor:
    """How many chunks each query of a tile sees; 0 from row `end` on."""
    if COUNTS:
        counts = tl.load(counts_BT + before + row, mask=row < end, other=0)
        counts = tl.maximum(tl.minimum(counts, chunks), 0).to(tl.int32)
    else:
        counts = tl.where(row < end, chunks, 0)
    return counts
