"""Additions to the memory bank, and what is dropped from it (LongMem, section 2.3).

Legend: B rows, K key/value heads, T tokens, D head width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from contextlab.attention import KV
from contextlab.methods.longmem.config import LongMemConfig
from contextlab.methods.parts.packed_banks import Bank


def add(bank: Bank, new: KV, config: LongMemConfig) -> Bank:
    """The bank with each row's tokens appended in whole chunks, and the oldest dropped.

    Tokens after a row's last whole chunk are not stored. With a shared bank the rows, of equal length, are joined end
    to end first, so that chunks may straddle rows, and every row holds the same bank.
    """
    csz = config.csz
    if config.bank_scope == "shared":
        k, v = (tuple(map(_joined, layers)) for layers in (new.k, new.v))
        new = new.replace(k, v, new.used_B * len(new.used_B))
    two_steps_B = -(-(2 * new.used_B // csz * csz) // bank.unit) * bank.unit
    whole_B = new.used_B // csz * csz
    longest = int(whole_B.max())
    k, v = (tuple(x_BKTD[:, :, :longest] for x_BKTD in layers) for layers in (new.k, new.v))
    new = new.replace(k, v, whole_B)
    if config.eviction == "fifo":
        return bank.add(new, config.M)
    # The released code drops what two steps have brought as soon as the bank would be full.
    held_B = bank.used_B
    full_B = (held_B + whole_B >= config.M) & (whole_B > 0)
    dropped_B = torch.where(full_B, torch.minimum(two_steps_B, held_B // bank.unit * bank.unit), 0)
    return bank.add(new, config.M, dropped_B)


def _joined(x_BKTD: Tensor) -> Tensor:
    """All rows one after the other, the same for every row."""
    rows, heads, length, width = x_BKTD.shape
    joined = x_BKTD.transpose(1, 2).reshape(1, rows * length, heads, width).transpose(1, 2)
    return joined.expand(rows, -1, -1, -1)
