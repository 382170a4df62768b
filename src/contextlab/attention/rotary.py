"""Rotary position encoding of queries and keys.

Legend: B rows, T tokens, K key/value heads, D head width.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

Rotary = tuple[Tensor, Tensor]
"""Cosine and signed sine `(..., T, D)`."""


class Positions(Protocol):
    """How a backbone encodes positions inside attention."""

    def rotary(self, positions: Tensor) -> Rotary | None:
        """Cosine and signed sine of a rotation by positions, or None for a model without rotary encoding."""

    @property
    def slopes_H(self) -> Tensor | None:
        """ALiBi slopes per head, or None."""


def rotate(x: Tensor, rotary: Rotary | None) -> Tensor:
    """Rotary position encoding of `x[..., T, D]`.

    Args:
        x: queries or keys.
        rotary: cosine and sine of the same trailing shape (or narrower), the sine with its sign turned in the first
            half of the width; None leaves `x` as it is.
    """
    if rotary is None:
        return x
    cos, sin = (part.to(x.dtype) for part in rotary)
    width = cos.shape[-1]
    if width < x.shape[-1]:
        return torch.cat((rotate(x[..., :width], rotary), x[..., width:]), dim=-1)
    return torch.addcmul(x * cos, x.roll(width // 2, dims=-1), sin)


def signed(cos: Tensor, sin: Tensor) -> Rotary:
    """Cosine and sine of transformers `(..., T, D)` in the form of `rotate`."""
    half = sin.shape[-1] // 2
    return cos, torch.cat((-sin[..., :half], sin[..., half:]), dim=-1)


def per_head(positions: Positions, position_BT: Tensor, dtype: torch.dtype | None = None) -> Rotary | None:
    """The encoding of positions for `rotate` of `x_BKTD`; one row for all where the rows are equal.

    Args:
        positions: how the model encodes them.
        position_BT: of the tokens.
        dtype: of what is rotated, to which `rotate` would otherwise convert it in every layer again.
    """
    rotary = positions.rotary(same_rows(position_BT))
    if rotary is None:
        return None
    cos, sin = (part[:, None].to(dtype or part.dtype) for part in rotary)
    return cos, sin


def of_heads(positions: Positions, position_BKS: Tensor) -> Rotary | None:
    """The encoding of positions that differ by head, for `rotate` of `x_BKSD`."""
    rotary = positions.rotary(position_BKS.flatten(0, 1))
    if rotary is None:
        return None
    cos, sin = (part.unflatten(0, position_BKS.shape[:2]) for part in rotary)
    return cos, sin


def same_rows(x: Tensor) -> Tensor:
    """One row for all where the rows are equal, so that masks and rotations are built once."""
    if x.shape[0] == 1:
        return x
    if x.stride(0) == 0:
        return x[:1]
    same = (x == x[:1]).all()
    # Shapes alone are those of texts of equal length.
    return x[:1] if x.is_meta or bool(same) else x
