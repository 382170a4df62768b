"""Buffers of the blocked torch forms: the type they compute in, and new memory for their results."""

from __future__ import annotations

import torch
from torch import Tensor


def wide(x: Tensor) -> torch.dtype:
    """The type to compute in: float64 for float64, float32 for everything narrower."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def contiguous_like(x: Tensor) -> Tensor:
    """Uninitialised contiguous memory of a tensor's shape and type."""
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)
