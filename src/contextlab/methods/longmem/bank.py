"""The memory bank: chunks of cached keys and values, found again by their mean key (LongMem, section 2.3).

Legend: B rows, K key/value heads, H query heads, T tokens, D head width, n chunks, c tokens of a chunk, m chunks taken.
"""

from __future__ import annotations

import dataclasses

import torch
import torch.nn.functional as F
from torch import Tensor

from contextlab.kernels.chunk_topk import chunk_topk
from contextlab.methods.longmem.config import LongMemConfig


@dataclasses.dataclass(frozen=True)
class Bank:
    """Chunks in the order of reading, the oldest first; a row's chunks are packed to the left.

    Attributes:
        k_BKncD: keys without positions, in the storage type.
        v_BKncD: values, in the storage type.
        mean_BKnD: mean key of every chunk before rounding to the storage type, float32.
        count_B: chunks in use per row.
    """

    k_BKncD: Tensor
    v_BKncD: Tensor
    mean_BKnD: Tensor
    count_B: Tensor

    @classmethod
    def empty(cls, rows: int, heads: int, width: int, config: LongMemConfig, device: torch.device) -> Bank:
        """A bank without chunks."""
        dtype: torch.dtype = getattr(torch, config.storage_dtype)
        none = torch.empty(rows, heads, 0, config.csz, width, dtype=dtype, device=device)
        mean = torch.empty(rows, heads, 0, width, device=device)
        return cls(none, none, mean, torch.zeros(rows, dtype=torch.int64, device=device))

    @property
    def chunks(self) -> int:
        """n: chunks of the longest row."""
        return self.mean_BKnD.shape[2]

    def search(self, q_BHTD: Tensor, config: LongMemConfig) -> tuple[Tensor, Tensor]:
        """The K/csz best chunks of every query and head: `ids_BHTm`, and `retrieved_BHTm` where there was one."""
        ids_BHTm, score_BHTm = chunk_topk(q_BHTD, self.mean_BKnD, self.count_B, config.K // config.csz)
        return ids_BHTm, score_BHTm > float("-inf")

    def with_zero_slot(self) -> tuple[Tensor, Tensor]:
        """Keys and values with one more chunk of zeros, which the released code meets when the bank is short."""
        return F.pad(self.k_BKncD, (0, 0, 0, 0, 0, 1)), F.pad(self.v_BKncD, (0, 0, 0, 0, 0, 1))

    def add(self, k_BKTD: Tensor, v_BKTD: Tensor, lengths_B: Tensor, config: LongMemConfig) -> Bank:
        """The bank with each row's first `lengths_B` tokens appended in whole chunks, and the oldest dropped.

        Tokens behind a row's last whole chunk are dropped. With a shared bank the rows, of equal length, are joined
        end to end first, so that chunks may straddle rows, and every row holds the same bank.
        """
        if config.bank_scope == "shared":
            k_BKTD, v_BKTD, lengths_B = _joined(k_BKTD), _joined(v_BKTD), lengths_B * lengths_B.shape[0]
        new_B = lengths_B // config.csz
        dropped_B = self._dropped(new_B, lengths_B, config)
        count_B = self.count_B + new_B - dropped_B
        slots = torch.arange(int(count_B.max()), device=count_B.device) + dropped_B[:, None]
        gap_B = self.mean_BKnD.shape[2] - self.count_B
        source_Bn = torch.where(slots < self.count_B[:, None], slots, slots + gap_B[:, None])
        k_BKncD, v_BKncD = (_chunks(x, int(new_B.max()), config.csz) for x in (k_BKTD, v_BKTD))
        mean_BKnD = k_BKncD.float().mean(3)
        return Bank(
            _append(self.k_BKncD, k_BKncD, source_Bn),
            _append(self.v_BKncD, v_BKncD, source_Bn),
            _append(self.mean_BKnD, mean_BKnD, source_Bn),
            count_B,
        )

    def _dropped(self, new_B: Tensor, lengths_B: Tensor, config: LongMemConfig) -> Tensor:
        """Oldest chunks that have to go."""
        capacity = config.M // config.csz
        if config.eviction == "fifo":
            return (self.count_B + new_B - capacity).clamp(min=0)
        two_steps_B = torch.minimum(2 * lengths_B // config.csz, self.count_B)
        return torch.where((self.count_B + new_B >= capacity) & (new_B > 0), two_steps_B, 0)


def _chunks(x_BKTD: Tensor, count: int, size: int) -> Tensor:
    rows, heads, _, width = x_BKTD.shape
    return x_BKTD[:, :, : count * size].reshape(rows, heads, count, size, width)


def _append(old_BKn: Tensor, new_BKn: Tensor, source_Bn: Tensor) -> Tensor:
    """Chunks `source_Bn` of the old ones followed by the new ones."""
    joined_BKn = torch.cat((old_BKn, new_BKn.to(old_BKn.dtype)), dim=2)
    rows = torch.arange(source_Bn.shape[0], device=source_Bn.device)[:, None]
    return joined_BKn.transpose(1, 2)[rows, source_Bn.clamp(max=max(joined_BKn.shape[2] - 1, 0))].transpose(1, 2)


def _joined(x_BKTD: Tensor) -> Tensor:
    """All rows one after the other, the same for every row."""
    rows, heads, length, width = x_BKTD.shape
    joined = x_BKTD.transpose(1, 2).reshape(1, rows * length, heads, width).transpose(1, 2)
    return joined.expand(rows, -1, -1, -1)
