"""Keys and values of the tokens in view.

Legend: B rows, S tokens in the cache, K key/value heads, D head width.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from contextlab import states


@dataclasses.dataclass(frozen=True)
class KV:
    """Keys (before rotation) and values of every layer, rows packed to the left.

    Attributes:
        k: per layer, `k_BKSD`.
        v: per layer, `v_BKSD`.
        used_B: slots in use per row; what lies behind them is padding.
    """

    k: tuple[Tensor, ...]
    v: tuple[Tensor, ...]
    used_B: Tensor

    @property
    def slots(self) -> int:
        """S: slots of the longest row."""
        return self.k[0].shape[2]

    def take(self, slots_BS: Tensor, used_B: Tensor) -> KV:
        """The given slots of every row, in the given order."""
        if slots_BS.shape[1] == 0:
            return KV(tuple(k[:, :, :0] for k in self.k), tuple(v[:, :, :0] for v in self.v), used_B)
        return KV(tuple(_pick(k, slots_BS) for k in self.k), tuple(_pick(v, slots_BS) for v in self.v), used_B)

    def check(self, name: str, most: int) -> None:
        """Refuse a loaded cache whose layers differ, or with more slots in use than there are or than `most`.

        Raises:
            states.Misfit: naming it.
        """
        states.same_slots(name, (*self.k, *self.v), self.used_B, most)

    def keep(self, first: int, last: int, rows_B: Tensor) -> KV:
        """Cut the given rows back to their first and last slots; the other rows stay as they are."""
        if not bool(rows_B.any()):
            return self
        kept_B = torch.where(rows_B, self.used_B.clamp(max=first + last), self.used_B)
        slots = torch.arange(int(kept_B.max()), device=rows_B.device)
        skipped_B = self.used_B - kept_B
        return self.take(torch.where(slots < first, slots, slots + skipped_B[:, None]), kept_B)


def empty_kv(layers: int, shape_BKD: tuple[int, int, int], like: Tensor) -> KV:
    """A cache without tokens, of `like`'s dtype and device."""
    rows, heads, width = shape_BKD
    none = like.new_zeros(rows, heads, 0, width)
    used_B = torch.zeros(rows, dtype=torch.int64, device=like.device)
    return KV((none,) * layers, (none,) * layers, used_B)


def _pick(x_BKSD: Tensor, slots_BS: Tensor) -> Tensor:
    index = slots_BS.clamp(max=x_BKSD.shape[2] - 1)[:, None, :, None]
    return x_BKSD.gather(2, index.expand(-1, x_BKSD.shape[1], -1, x_BKSD.shape[3]))
