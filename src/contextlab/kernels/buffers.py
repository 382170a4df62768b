"""Buffers of the forms: the type that torch computes in, how much at one time, rows in one piece, new memory."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

ELSEWHERE = 128
"""Times as many numbers at one time on other devices than a CPU: the largest loop then takes 256 MiB of float32."""


def wide(x: Tensor) -> torch.dtype:
    """The type to compute in: float64 for float64, float32 for everything narrower."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def at_once(numbers: int, like: Tensor) -> int:
    """How many numbers a loop computes at one time on the device of a tensor.

    Args:
        numbers: on a CPU, where they stay in the processor's caches.
        like: a tensor on the device; others wait for every launch, so that few large ones are faster.
    """
    return numbers if like.device.type == "cpu" else numbers * ELSEWHERE


def contiguous_like(x: Tensor) -> Tensor:
    """Uninitialised contiguous memory of a tensor's shape and type."""
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def in_rows(*tensors: Tensor) -> Iterator[Tensor]:
    """The tensors, copied where a row of D numbers is not contiguous: fused kernels assume that it is."""
    return (x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous() for x in tensors)
