"""First in, first out: which slots of a store and of what is put after it stay when the newest are kept.

Legend: B rows, J slots.
"""

from __future__ import annotations

import torch
from torch import Tensor


def newest(used_B: Tensor, slots: int, new_B: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Slots to take, in order, of a store with new entries after it; both are packed to the left in every row.

    Args:
        used_B: slots of the store in use.
        slots: of the store; the new entries begin after them.
        new_B: new entries of every row.
        most: entries that are kept of a row.

    Returns:
        `slots_BJ`, of which those after a row's entries mean nothing, and how many entries `kept_B` of each row.
    """
    all_B = used_B + new_B
    kept_B = all_B.clamp(max=most)
    slots_BJ = torch.arange(int(kept_B.max()), device=used_B.device) + (all_B - kept_B)[:, None]
    new_slots_BJ = slots_BJ + (slots - used_B)[:, None]
    return torch.where(slots_BJ < used_B[:, None], slots_BJ, new_slots_BJ), kept_B
