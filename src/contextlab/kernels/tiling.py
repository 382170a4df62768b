"""What the Triton kernels share: tiles, tuned on the device and fixed in the interpreter, and how they are moved."""

# mypy: allow-untyped-decorators

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import triton
import triton.language as tl

from contextlab.kernels.dispatch import interpreted

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)
NEVER: tl.constexpr = tl.constexpr(float("-inf"))
INTERPRETED = (64, 64, 4, 1)
FEW = 16


def tuned(
    tile: Sequence[str], candidates: Sequence[tuple[int, int, int, int]], key: Sequence[str], reset: Sequence[str] = ()
) -> Callable[[Any], Any]:
    """Choose a tile once for every value of `key`.

    Args:
        tile: names of its rows and columns.
        candidates: rows, columns, warps and stages.
        key: arguments that the choice depends on.
        reset: arguments that a kernel adds to.
    """
    chosen = [INTERPRETED] if interpreted() else candidates
    configs = [
        triton.Config(dict(zip(tile, (rows, columns), strict=True)), num_warps=warps, num_stages=stages)
        for rows, columns, warps, stages in chosen
    ]
    decorate: Callable[[Any], Any] = triton.autotune(configs, list(key), reset_to_zero=list(reset) or None)
    return decorate


def padded_width(width: int) -> int:
    """The next power of two that matrix units take."""
    return max(16, int(triton.next_power_of_2(width)))


@triton.jit
def load_rows(x: tl.tensor, row: tl.tensor, rows: tl.tensor, d: tl.tensor, WIDTH: tl.constexpr) -> tl.tensor:
    """Rows of a contiguous matrix of `rows` rows; zeros outside of it."""
    return tl.load(x + row[:, None] * WIDTH + d[None, :], mask=(row < rows)[:, None] & (d < WIDTH)[None, :], other=0.0)


@triton.jit
def store_rows(
    x: tl.tensor, value: tl.tensor, row: tl.tensor, rows: tl.tensor, d: tl.tensor, WIDTH: tl.constexpr
) -> None:
    """Write rows of a contiguous matrix, in its type."""
    place = x + row[:, None] * WIDTH + d[None, :]
    tl.store(place, value.to(x.dtype.element_ty), mask=(row < rows)[:, None] & (d < WIDTH)[None, :])


@triton.jit
def fold(
    logits: tl.tensor, v: tl.tensor, top: tl.tensor, total: tl.tensor, out: tl.tensor
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Take a tile into the softmax."""
    higher = tl.maximum(top, tl.max(logits, 1))
    # A query that has seen no key so far has no highest logit to subtract.
    ground = tl.where(higher == NEVER, 0.0, higher)
    shrink = tl.exp2(top - ground)
    weights = tl.exp2(logits - ground[:, None])
    out = tl.dot(weights.to(v.dtype), v, out * shrink[:, None], input_precision="ieee")
    return higher, total * shrink + tl.sum(weights, 1), out


@triton.jit
def tile_gradients(
    logits: tl.tensor,
    q: tl.tensor,
    dout: tl.tensor,
    v: tl.tensor,
    lse: tl.tensor,
    delta: tl.tensor,
    dk: tl.tensor,
    dv: tl.tensor,
) -> tuple[tl.tensor, tl.tensor]:
    """Add what the queries of a tile say about its keys and values."""
    weights = tl.exp2(logits - lse[:, None])
    dv = tl.dot(tl.trans(weights).to(dout.dtype), dout, dv, input_precision="ieee")
    dlogits = weights * (tl.dot(dout, tl.trans(v), input_precision="ieee") - delta[:, None])
    return tl.dot(tl.trans(dlogits).to(q.dtype), q, dk, input_precision="ieee"), dv
