"""Buffers of the blocked torch forms: the type they compute in, and fresh memory for what they return."""

from __future__ import annotations

import torch
from torch import Tensor


def wide(x: Tensor) -> torch.dtype:
    """The type computed in: float64 stays, everything narrower is widened to float32."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def contiguous_like(x: Tensor) -> Tensor:
    """Unwritten contiguous memory of a tensor's shape and type, whatever its strides."""
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)
