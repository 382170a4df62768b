"""Division of a state into its rows and back, for methods that have separate weights for every row.

Legend: B rows, K key/value heads, S slots, D head width.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from contextlab.methods.local_cache import L


def single_row(state: L, row: int) -> L:
    """One row as views: weights are not copied. Without padding, so that it computes bitwise what it would alone."""
    alone = state.map(lambda x: x[row : row + 1])
    used = int(alone.kv.used_B)
    k, v = (tuple(x_BKSD[:, :, :used] for x_BKSD in part) for part in (alone.kv.k, alone.kv.v))
    return dataclasses.replace(alone, kv=alone.kv.replace(k, v, alone.kv.used_B))


def stacked(rows: Sequence[L]) -> L:
    """Rows as one state; caches are filled up to the longest, and all else must have equal shapes."""
    slots = max(row.kv.slots for row in rows)
    columns: Any = zip(*(_widened(row, slots).tensors().values() for row in rows), strict=True)
    return rows[0].map(lambda _: torch.cat(next(columns)))


def _widened(state: L, slots: int) -> L:
    def widen(x_BKSD: Tensor) -> Tensor:
        return F.pad(x_BKSD, (0, 0, 0, slots - x_BKSD.shape[2]))

    kv = state.kv.replace(tuple(map(widen, state.kv.k)), tuple(map(widen, state.kv.v)), state.kv.used_B)
    return dataclasses.replace(state, kv=kv)
