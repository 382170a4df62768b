"""Parts that Triton kernels share: tile sizes, tuned on the device and fixed in the interpreter; loads and stores."""

# mypy: allow-untyped-decorators

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from contextlab.kernels.dispatch import interpreted

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)
NEVER: tl.constexpr = tl.constexpr(float("-inf"))
Tile = tuple[int, int, int, int]
INTERPRETED: Tile = (64, 64, 4, 1)
WIDER: dict[int, tuple[Tile, ...]] = {
    256: ((128, 64, 8, 3), (64, 64, 8, 3), (16, 64, 4, 2)),
    512: ((64, 32, 4, 2), (32, 64, 8, 2), (16, 64, 4, 2)),
    1024: ((16, 64, 4, 2), (16, 32, 4, 2)),
    2048: ((16, 32, 8, 2), (16, 16, 4, 2)),
}
"""Tile sizes for wide rows in attention and search, by the least bytes of a row."""
WIDER_OF_KEYS: dict[int, tuple[Tile, ...]] = {
    256: ((64, 64, 8, 2), (16, 64, 4, 2)),
    512: ((32, 32, 8, 2), (16, 32, 4, 2)),
    1024: ((16, 32, 8, 2), (16, 16, 4, 2)),
    2048: ((16, 16, 4, 2),),
}
"""The same for kernels that accumulate gradients of keys and values, two sums for every key."""
PRECISION: tl.constexpr = tl.constexpr("tf32x3" if torch.version.hip is None else "ieee")
"""A float32 product as three tf32 products on matrix units, with an error near float32's; AMD has no tf32."""


def tuned(
    tile: Sequence[str],
    candidates: Sequence[Tile],
    key: Sequence[str],
    reset: Sequence[str] = (),
    wider: Mapping[int, Sequence[Tile]] | None = None,
) -> Callable[[Any], Any]:
    """Decorate a kernel that is tuned once for every value of `key`.

    Args:
        tile: names of its rows and columns.
        candidates: rows, columns, warps and stages.
        key: arguments that the choice depends on.
        reset: arguments that a kernel adds to.
        wider: candidates for wide rows, by the least bytes of a row: the others need too many registers there. A row
            of float32 counts twice, for its two parts.
    """
    by_bytes = {0: candidates, **(wider or {})}
    chosen = {INTERPRETED} if interpreted() else {tile_sizes for some in by_bytes.values() for tile_sizes in some}

    def fitting(configs: list[Any], arguments: Mapping[str, Any], **constants: Any) -> list[Any]:
        if interpreted():
            return configs
        kind = next(x.dtype for x in arguments.values() if _is_matrix(x))
        bytes_of_row = constants["BLOCK_D"] * kind.itemsize * (2 if kind == torch.float32 else 1)
        fit = by_bytes[max(least for least in by_bytes if least <= bytes_of_row)]
        return [config for config in configs if _numbers(config) in fit]

    configs = [
        triton.Config(dict(zip(tile, (rows, columns), strict=True)), num_warps=warps, num_stages=stages)
        for rows, columns, warps, stages in sorted(chosen, reverse=True)
    ]
    decorate: Callable[[Any], Any] = triton.autotune(
        configs, list(key), reset_to_zero=list(reset) or None, prune_configs_by={"early_config_prune": fitting}
    )
    return lambda kernel: OnDevice(decorate(kernel))


class OnDevice:
    """A kernel that is launched on the device of its tensors, whichever torch's current one is.

    Args:
        kernel: as Triton makes it.
    """

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def __getattr__(self, name: str) -> Any:
        return getattr(self.kernel, name)

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        launch = self.kernel[grid]

        def launched(*arguments: Any, **constants: Any) -> None:
            tensor = next(x for x in arguments if isinstance(x, torch.Tensor))
            with torch.cuda.device_of(tensor):
                launch(*arguments, **constants)

        return launched


def _is_matrix(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.is_floating_point() and x.dim() > 3


def _numbers(config: Any) -> Tile:
    rows, columns = config.kwargs.values()
    return rows, columns, config.num_warps, config.num_stages


def bucket_of(length: int) -> int:
    """The next power of 16: all lengths up to it share one choice of tile."""
    return int(1 << -(-(length - 1).bit_length() // 4) * 4)


def padded_width(width: int) -> int:
    """The next power of two that matrix units support."""
    return max(16, int(triton.next_power_of_2(width)))


@triton.jit
def load_rows(x: tl.tensor, row: tl.tensor, rows: tl.tensor, d: tl.tensor, WIDTH: tl.constexpr) -> tl.tensor:
    """Load rows of a contiguous matrix of `rows` rows; zeros outside of it."""
    return tl.load(x + row[:, None] * WIDTH + d[None, :], mask=(row < rows)[:, None] & (d < WIDTH)[None, :], other=0.0)


@triton.jit
def load_apart(
    x: tl.tensor, row: tl.tensor, rows: tl.tensor, step: tl.tensor, d: tl.tensor, WIDTH: tl.constexpr
) -> tl.tensor:
    """Load rows that begin `step` numbers apart, of a matrix of `rows` rows; zeros outside of it."""
    pointers = x + row.to(tl.int64)[:, None] * step + d[None, :]
    return tl.load(pointers, mask=(row < rows)[:, None] & (d < WIDTH)[None, :], other=0.0)


@triton.jit
def store_rows(
    x: tl.tensor, value: tl.tensor, row: tl.tensor, rows: tl.tensor, d: tl.tensor, WIDTH: tl.constexpr
) -> None:
    """Write rows of a contiguous matrix, in its type."""
    pointers = x + row[:, None] * WIDTH + d[None, :]
    tl.store(pointers, value.to(x.dtype.element_ty), mask=(row < rows)[:, None] & (d < WIDTH)[None, :])


@triton.jit
def fold(
    logits: tl.tensor, v: tl.tensor, top: tl.tensor, total: tl.tensor, out: tl.tensor
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Add a tile to the online softmax."""
    higher = tl.maximum(top, tl.max(logits, 1))
    # A query that has seen no key yet has no highest logit to subtract.
    ground = tl.where(higher == NEVER, 0.0, higher)
    shrink = tl.exp2(top - ground)
    weights = tl.exp2(logits - ground[:, None])
    out = tl.dot(weights.to(v.dtype), v, out * shrink[:, None], input_precision=PRECISION)
    return higher, total * shrink + tl.sum(weights, 1), out


@triton.jit
def query_gradients(
    logits: tl.tensor,
    k: tl.tensor,
    v: tl.tensor,
    dout: tl.tensor,
    lse: tl.tensor,
    delta: tl.tensor,
    dq: tl.tensor,
) -> tuple[tl.tensor, tl.tensor]:
    """Add a tile's gradients of its queries, and return those of its logits."""
    weights = tl.exp2(logits - lse[:, None])
    dlogits = weights * (tl.dot(dout, tl.trans(v), input_precision=PRECISION) - delta[:, None])
    return tl.dot(dlogits.to(k.dtype), k, dq, input_precision=PRECISION), dlogits


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
    """Add a tile's gradients of its keys and values."""
    weights = tl.exp2(logits - lse[:, None])
    dv = tl.dot(tl.trans(weights).to(dout.dtype), dout, dv, input_precision=PRECISION)
    dlogits = weights * (tl.dot(dout, tl.trans(v), input_precision=PRECISION) - delta[:, None])
    return tl.dot(tl.trans(dlogits).to(q.dtype), q, dk, input_precision=PRECISION), dv
