"""Blocks of queries with the keys that a mask lets them attend to.

A fused kernel computes the logits of every key that it is given. Of the keys after a query, and before a band, it need
not be given those that no query of a block attends to.

Legend: T queries, S keys.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

QUERIES_AT_ONCE = 256
HIDDEN = torch.finfo(torch.float32).min / 2
"""Added to a logit it hides a key as -inf does, and a query that sees no key of a part still has a finite output."""


class SeenBlock(NamedTuple):
    """Consecutive queries, and the keys from the first to the last that one of them attends to.

    Attributes:
        queries: of the block.
        keys: that it attends to; one key where there is none.
        mask: of these queries and keys, where there is one.
    """

    queries: slice
    keys: slice
    mask: Tensor | None


def blocks(mask: Tensor | None) -> list[SeenBlock]:
    """The blocks of a mask `(..., T, S)`, bool or added to the logits, where `HIDDEN` or less hides a key.

    No mask, a mask of few queries, or of one row or one column for all of them, is one block of all keys.
    """
    if mask is None or mask.shape[-2] <= QUERIES_AT_ONCE or mask.shape[-1] == 1:
        return [SeenBlock(slice(None), slice(None), mask)]
    queries, keys = mask.shape[-2:]
    spans = [slice(begin, min(begin + QUERIES_AT_ONCE, queries)) for begin in range(0, queries, QUERIES_AT_ONCE)]
    each = mask.detach().reshape(-1, queries, keys)
    chosen = [_keys(each[:, span]) for span in spans]
    return [SeenBlock(span, keys, mask[..., span, keys]) for span, keys in zip(spans, chosen, strict=True)]


def _keys(mask: Tensor) -> slice:
    """From the first key to the last that any query attends to."""
    seen_S = mask.flatten(0, 1).amax(0)
    seen_S = seen_S if seen_S.dtype == torch.bool else seen_S > HIDDEN
    numbers = seen_S.nonzero()
    return slice(int(numbers[0]), int(numbers[-1]) + 1) if len(numbers) else slice(0, 1)
