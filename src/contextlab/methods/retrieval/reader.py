"""Attention over the local view, the new tokens, and what every query retrieves of the bank.

Legend: B rows, T new tokens, S keys in view, H query heads, K key/value heads, D head width, m chunks taken.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from contextlab.attention import CacheReader, Layout, Positions, rotate
from contextlab.kernels.chunk_topk import Index
from contextlab.kernels.retrieval_attention import retrieval_attention
from contextlab.methods.banks import ChunkBank
from contextlab.methods.local_cache import LocalState
from contextlab.methods.retrieval.learned import MemoryQuery


@dataclasses.dataclass(frozen=True)
class RetrievalState(LocalState):
    """The local view, and the bank.

    Attributes:
        bank: all that has left the view, for the layers that retrieve; keys rotated to the first position behind
            the sinks.
    """

    bank: ChunkBank


@dataclasses.dataclass(frozen=True)
class Reach:
    """What retrieves, and how much.

    Attributes:
        first_layer: the lowest layer that retrieves.
        take: chunks per query and head.
        width: slots from that of the retrieved tokens to the last of the view.
        index: that searches the bank.
    """

    first_layer: int
    take: int
    width: int
    index: Index


class RetrievalReader(CacheReader):
    """Causal attention over a cache, joined in one softmax with the best chunks of a bank."""

    def __init__(
        self,
        positions: Positions,
        state: RetrievalState,
        layout: Layout,
        reach: Reach,
        learned: Sequence[MemoryQuery] | None,
    ) -> None:
        super().__init__(positions, state.kv, layout)
        self.bank, self.reach, self.learned = state.bank, reach, learned

    def __call__(
        self, layer: int, q_BHTD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, scale: float, window: int | None = None
    ) -> Tensor:
        """Append the new keys and values of a layer and attend."""
        memory = len(self.k) - self.reach.first_layer
        # A layer that the model was trained with a narrow window in does not reach the position of the bank.
        narrow = window is not None and window < self.reach.width
        mask_B1TS = self.mask(window, q_BHTD.dtype)
        if memory < 0 or narrow or not self.bank.chunks or mask_B1TS is None:
            return super().__call__(layer, q_BHTD, k_BKTD, v_BKTD, scale, window)
        k_BKSD, v_BKSD = self.append(k_BKTD, v_BKTD)
        q_near_BHTD = q_memory_BHTD = rotate(q_BHTD, self._q_rotary)
        bias_H = torch.zeros(q_BHTD.shape[1], device=q_BHTD.device)
        if self.learned is not None:
            learned = self.learned[memory]
            q_memory_BHTD, bias_H = learned(q_BHTD, self._q_rotary), learned.bias_H
        ids_BHTm, retrieved_BHTm = self.bank.search(memory, q_memory_BHTD, self.reach.take, self.reach.index)
        local = (q_near_BHTD, k_BKSD, v_BKSD, mask_B1TS[:, 0])
        bank = (q_memory_BHTD, *self.bank.tokens(memory), ids_BHTm, retrieved_BHTm, bias_H)
        return retrieval_attention(*local, *bank, scale=scale)
