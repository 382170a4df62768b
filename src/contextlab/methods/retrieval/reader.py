"""Attention over the local view, the new tokens, and what every query retrieves of the bank.

Legend: B rows, T new tokens, S keys in view, H query heads, K key/value heads, D head width, m chunks taken.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from contextlab.attention import KV, CacheReader, Layout, Positions, rotate
from contextlab.kernels.chunk_topk import Index
from contextlab.kernels.retrieval_attention import Inputs, retrieval_attention
from contextlab.methods.parts.local_cache import LocalState
from contextlab.methods.parts.packed_banks import Bank
from contextlab.methods.parts.representatives import of_key_heads, products
from contextlab.methods.retrieval.learned import MemoryQuery


@dataclasses.dataclass(frozen=True)
class RetrievalState(LocalState):
    """The local view, and the bank.

    Attributes:
        bank: all that has left the view, for the layers that retrieve; keys rotated to the first position after
            the sinks.
        scores: with representatives, for the layers that retrieve, `score_BKS1` of the tokens in view so far.
    """

    bank: Bank
    scores: tuple[Tensor, ...] = ()

    def unpadded(self) -> Self:
        """The state without slots that no row uses, as views; scores have those of the cache."""
        used = int(self.kv.used_B.max())
        return dataclasses.replace(super().unpadded(), scores=tuple(x[:, :, :used] for x in self.scores)).own(
            self.owner
        )


@dataclasses.dataclass(frozen=True)
class Reach:
    """Which layers retrieve, and how much.

    Attributes:
        layers: that retrieve, from the lowest.
        take: chunks per query and head.
        width: slots from that of the retrieved tokens to the last of the view.
        index: that searches the bank.
        shared: whether all heads of a layer take the same chunks.
        following: tokens whose queries score a token; None where nothing is scored.
    """

    layers: Sequence[int]
    take: int
    width: int
    index: Index
    shared: bool
    following: int | None


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
        self._memory = {layer: memory for memory, layer in enumerate(reach.layers)}
        self._old_scores, self._q_BKTD = state.scores, list[Tensor]()

    def __call__(
        self, layer: int, q_BHTD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, scale: float, window: int | None = None
    ) -> Tensor:
        """Append the new keys and values of a layer and attend."""
        memory = self._memory.get(len(self.k))
        if memory is not None and self.reach.following is not None:
            self._q_BKTD.append(of_key_heads(rotate(q_BHTD, self._q_rotary), k_BKTD.shape[1]))
        # A layer that the model was trained with a narrow window in does not reach the position of the bank.
        narrow = window is not None and window < self.reach.width
        if memory is None or narrow or not self.bank.chunks:
            return super().__call__(layer, q_BHTD, k_BKTD, v_BKTD, scale, window)
        k_BKSD, v_BKSD = self.append(k_BKTD, v_BKTD)
        q_near_BHTD = q_memory_BHTD = rotate(q_BHTD, self._q_rotary)
        bias_H = torch.zeros(q_BHTD.shape[1], device=q_BHTD.device)
        if self.learned is not None:
            learned = self.learned[memory]
            q_memory_BHTD, bias_H = learned(q_BHTD, self._q_rotary), learned.bias_H
        reach = self.reach
        ids_BHTm, retrieved_BHTm = self.bank.search(memory, q_memory_BHTD, reach.take, reach.index, shared=reach.shared)
        mask_BTS = self.mask(window, q_BHTD.dtype)[:, 0]
        k_BKncD, v_BKncD, ids_BHTm = self.bank.taken(memory, ids_BHTm, retrieved_BHTm)

        def part(queries: slice, keys: slice) -> Tensor:
            local = (q_near_BHTD[:, :, queries], k_BKSD[:, :, keys], v_BKSD[:, :, keys], mask_BTS[:, queries, keys])
            selection = (ids_BHTm[:, :, queries], retrieved_BHTm[:, :, queries])
            inputs = Inputs(*local, q_memory_BHTD[:, :, queries], k_BKncD, v_BKncD, *selection, bias_H)
            return retrieval_attention(inputs, scale=scale)

        return self.in_parts(k_BKSD, v_BKSD, part)

    def scores(self, lengths_B: Tensor) -> tuple[Tensor, ...]:
        """Scores of the tokens in view after a pass over each row's next `lengths_B` tokens; see `RetrievalState`."""
        following, slots = self.reach.following, self.kv.slots
        if following is None:
            return ()
        where = (lengths_B, self.layout.position_BT, self.key_position_BS, following)
        pairs = zip(self._q_BKTD, (self.k[layer] for layer in self.reach.layers), strict=True)
        added = [products(q_BKTD, k_BKSD, *where) for q_BKTD, k_BKSD in pairs]
        old = tuple(x[:, :, :slots] + y[:, :, :slots] for x, y in zip(self._old_scores, added, strict=True))
        new = KV(tuple(x[:, :, slots:] for x in added), (), lengths_B)
        return KV(old, (), self.kv.used_B).joined(new).k
