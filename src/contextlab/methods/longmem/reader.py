"""Attention of the side network: local, and in the blocks that read a bank over what every query retrieves too.

Legend: B rows, T new tokens, S keys in view, H query heads, K key/value heads, D head width, m chunks taken.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from contextlab.attention import CacheReader, Layout, Positions, rotate
from contextlab.kernels.joint_memory_attention import fuse_memory, local_attention
from contextlab.kernels.retrieval_attention import Inputs, retrieval_attention
from contextlab.methods.longmem.config import LongMemConfig
from contextlab.methods.longmem.side import SideNetwork
from contextlab.methods.longmem.state import LongMemState

Retrieved = tuple[Tensor, Tensor, Tensor, Tensor]
"""Keys and values of a bank, the chunks that every query takes of it, and which of these exist."""


class MemoryReader(CacheReader):
    """Local attention of the side blocks, joined with the memory's (equations 3 and 4).

    Attributes:
        ids_BHtm: the chunks taken in the last block that read a bank.
    """

    def __init__(
        self, positions: Positions, config: LongMemConfig, side: SideNetwork, state: LongMemState, layout: Layout
    ) -> None:
        super().__init__(positions, state.side_kv, layout)
        self.config, self.side = config, side
        self.bank = state.bank
        self.layers = {block: side.banked.index(layer) for block, layer in side.reading.items()}
        self.ids_BHtm: Tensor | None = None

    def __call__(
        self, layer: int, q_BHTD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, scale: float, window: int | None = None
    ) -> Tensor:
        """Attend locally; in a block that reads a bank also to the retrieved chunks."""
        block = len(self.k) + self.side.first
        if block not in self.layers or self.bank.chunks == 0:
            local_BHTD = super().__call__(layer, q_BHTD, k_BKTD, v_BKTD, scale, window)
            return torch.zeros_like(local_BHTD) if self._only_read(block) else local_BHTD
        k_BKSD, v_BKSD = self.append(k_BKTD, v_BKTD)
        q_near_BHTD = rotate(q_BHTD, self._q_rotary)
        # One softmax compares logits of the bank with local ones: its keys then have a position too, a segment's first.
        placed = self.config.local == "sliding" or self.config.softmax == "joint"
        q_memory_BHTD = q_near_BHTD if placed else q_BHTD
        memory = (q_memory_BHTD, *self._retrieved(self.layers[block], q_memory_BHTD), self.side.gate(block))
        if self.config.softmax == "joint":
            mask_BTS = self.mask(window, q_BHTD.dtype)[:, 0]
            out_BHTD = retrieval_attention(Inputs(q_near_BHTD, k_BKSD, v_BKSD, mask_BTS, *memory), scale=scale)
            if not self._only_read(block):
                return out_BHTD
            return out_BHTD - self._local(q_near_BHTD, k_BKSD, v_BKSD, scale, window)
        local_BHTD = self._local(q_near_BHTD, k_BKSD, v_BKSD, scale, window)
        out_BHTD = fuse_memory(local_BHTD, *memory, scale=scale)
        return out_BHTD - local_BHTD if self._only_read(block) else out_BHTD

    def _only_read(self, block: int) -> bool:
        """Whether a block reads what the memory changes, without what is local."""
        return self.config.init == "memory" and block in self.layers

    def _local(self, q_BHTD: Tensor, k_BKSD: Tensor, v_BKSD: Tensor, scale: float, window: int | None) -> Tensor:
        if self.level and self.layout.plain and self.narrow(window) is None:
            return local_attention(q_BHTD, k_BKSD, v_BKSD, scale=scale, slopes_H=self.positions.slopes_H)
        # Rows that are not equally long have padding between their cache and the new tokens, which only a mask hides.
        return self.attend(q_BHTD, k_BKSD, v_BKSD, scale, window)

    def _retrieved(self, layer: int, q_BHTD: Tensor) -> Retrieved:
        self.ids_BHtm, retrieved_BHtm = self.bank.search(
            layer, q_BHTD, self.config.K // self.config.csz, self.config.index
        )
        k_BKncD, v_BKncD, ids_BHtm = self.bank.taken(layer, self.ids_BHtm, retrieved_BHtm)
        if self.config.short_bank == "zero_slot":
            # The released code retrieves a chunk of zeros when the bank is short.
            k_BKncD, v_BKncD = (pad(x_BKncD, (0, 0, 0, 0, 0, 1)) for x_BKncD in (k_BKncD, v_BKncD))
            ids_BHtm = ids_BHtm.masked_fill(~retrieved_BHtm, k_BKncD.shape[2] - 1)
            retrieved_BHtm = retrieved_BHtm.any(-1, keepdim=True).expand_as(retrieved_BHtm)
        return k_BKncD, v_BKncD, ids_BHtm, retrieved_BHtm
