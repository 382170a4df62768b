"""Methods with a local cache that is cut back at the end of every segment.

Legend: B rows, t tokens of a block, T tokens of a pass, S slots of the cache, K key/value heads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from contextlab.attention import CacheReader, Layout
from contextlab.errors import UserError
from contextlab.method import C, Capabilities, Lengths
from contextlab.methods.parts.blocks import BlockMethod
from contextlab.methods.parts.branches import Branches
from contextlab.methods.parts.local_cache import Appended, L, LocalCache, LocalState
from contextlab.methods.parts.packed_branches import PackedTail


class SegmentMethod(BlockMethod[C, L]):
    """A method with a local cache; it says what else it keeps, and what it does at a segment's end.

    A subclass sets `local` in its constructor, and overrides what differs from a cache alone: `importance` (which slots
    of the cache stay at a segment's end), `begin` (what the state holds beside the cache), `reader` or `forward` (how a
    pass attends), and `close` (what happens at a segment's end).

    Attributes:
        local: how long a segment is, and how much of the cache stays at its end.
    """

    local: LocalCache
    packs_inside: bool = False
    """Whether passes may go beyond the end of a group of a packed cache: their attention is `in_parts`."""

    @property
    def capabilities(self) -> Capabilities:
        """Exact streaming of any length; where nothing of the last segment stays, a segment starts cold."""
        segment = None if self.local.keep_last else self.local.segment
        return Capabilities(segment=segment, few_bits=self.local.storage is not None)

    def importance(self, state: L) -> Tensor | Sequence[Tensor] | None:
        """How important every slot of the cache is at a segment's end; the `keep_last` most important stay in order.

        The `keep_first` first slots stay whatever their importance, and of equally important ones the earlier. The
        newest slots are the most important ones when there is no importance (None).

        Args:
            state: with all tokens of the segment in its cache.

        Returns:
            `importance_BS` for all layers and heads, in which minus infinity drops a slot where there would be room
            for it; or `importance_BKS` of every layer, by which all heads keep equally many. Padding is ignored.
        """
        return None

    def begin(self, empty: LocalState, ahead: Lengths | None) -> L:
        """An empty state, of an empty cache and what else the method keeps.

        Args:
            empty: the cache and what every state has.
            ahead: of the text's start.
        """
        return cast(L, empty)

    def reader(self, state: L, layout: Layout) -> CacheReader:
        """The attention of one pass."""
        return CacheReader(self.network, state.kv, layout)

    def forward(self, state: L, tokens_BT: Tensor, layout: Layout) -> tuple[Tensor, Sequence[Appended]]:
        """`hidden_BTC` of tokens that follow a state, and what has been appended to its caches."""
        reader = self.reader(state, layout)
        return self.local.hidden(self.network, state, tokens_BT, reader), (reader,)

    def close(self, state: L, ended_B: Tensor) -> L:
        """The state after a segment's end in the rows of `ended_B`, of which at least one is true.

        Args:
            state: after all tokens of the segment, before anything is cut back.
            ended_B: bool.

        Raises:
            UserError: for an importance on the host that is not a number.
        """
        importance = self.importance(state)
        parts = [importance[:, None]] if isinstance(importance, Tensor) else importance or ()
        # On a device every layer's launches count; a method's laws are checked on a CPU.
        if parts and all(part.is_cpu for part in parts) and self._doubtful(parts, state, ended_B):
            raise UserError(
                f"The importance that {type(self).__name__} gives to a token is not a number: return numbers, or minus "
                "infinity to drop a token."
            )
        return self.local.cut_back(state, self.network, importance)

    def _doubtful(self, parts_BKS: Sequence[Tensor], state: L, ended_B: Tensor) -> bool:
        """Whether an importance is not a number where it decides what stays."""
        slot_S = torch.arange(state.kv.slots)
        decides_BS = (slot_S >= self.local.keep_first) & (slot_S < state.kv.used_B[:, None]) & ended_B[:, None]
        return any(bool((part_BKS.isnan() & decides_BS[:, None]).any()) for part_BKS in parts_BKS)

    def placed_for(self, ahead: Lengths | None) -> Lengths | None:
        """The lengths with which a segment ends; only segments that start cold are placed for what is ahead."""
        return ahead if self.capabilities.segment else None

    def start(self, batch_size: int = 1, *, ahead: Lengths | None = None) -> L:
        """An empty state."""
        return self.begin(self.local.empty(self.network, batch_size, self.placed_for(ahead)), ahead)

    def first_segment(self, ahead: Lengths | None) -> int:
        """Tokens of the first segment."""
        return self.local.first_segment(self.placed_for(ahead))

    def left(self, state: L) -> Tensor:
        """`left_B`: tokens up to the end of the segment, or to where a pass has to end for another reason."""
        return state.left_B

    def room(self, state: L) -> Tensor:
        """As `left`, or until tokens in view are packed where the pass cannot do that itself."""
        left_B = self.left(state)
        return left_B if self.packs_itself(state) else self.local.until_packed(state, left_B)

    def packs_itself(self, state: L) -> bool:
        """Whether a pass packs the groups that it goes beyond, which changes its rotated keys in place."""
        return self.packs_inside and self.packs_beside(state) and not state.kv.raw and not torch.is_grad_enabled()

    def room_beside(self, state: L) -> Tensor:
        """As `left` where every continuation can pack its own tokens."""
        return self.left(state) if self.packs_beside(state) else self.room(state)

    def packs_beside(self, state: L) -> bool:
        """Whether continuations can pack their own tokens: where all rows have as many."""
        used_B = state.kv.used_B
        return self.local.storage is not None and bool((used_B == used_B[:1]).all())

    def reserve(self, state: L, lengths_B: Tensor) -> L:
        """Free slots, as far as the segment goes."""
        return self.local.reserve(state, lengths_B)

    def step(self, state: L, tokens_Bt: Tensor, lengths_B: Tensor) -> tuple[L, Tensor]:
        """Attend to the cache and the new tokens; then close the segments that have ended."""
        opened, layout = self.opened(state, lengths_B)
        hidden_BtC, readers = self.forward(opened, tokens_Bt, layout)
        grown = self.grown(opened, readers, lengths_B)
        return self.local.packed(state, self.closed(grown, lengths_B), grown.left_B == 0, layout.packing), hidden_BtC

    def grown(self, opened: L, readers: Sequence[Appended], lengths_B: Tensor) -> L:
        """The state with each row's first `lengths_B` new tokens, before segments are closed."""
        return self.local.grown(opened, readers, lengths_B)

    def opened(self, state: L, lengths_B: Tensor) -> tuple[L, Layout]:
        """The state as a pass over each row's next `lengths_B` tokens reads it, and their layout."""
        opened = self.local.opened(state)
        packing = state.kv.packing(lengths_B) if self.packs_itself(state) else None
        return opened, dataclasses.replace(self.local.layout(opened, int(lengths_B.max())), packing=packing)

    def closed(self, grown: L, lengths_B: Tensor) -> L:
        """The state after a step of `lengths_B` tokens, with segments closed that it has ended."""
        ended_B = grown.left_B == 0
        if not bool(ended_B.any()):
            return grown
        read = dataclasses.replace(grown, length_B=grown.length_B + lengths_B)
        # A block counts its tokens itself.
        return dataclasses.replace(self.close(read, ended_B), length_B=grown.length_B)

    def continuations(self, state: L, longest: int) -> Branches[L] | None:
        """Side by side after the cache, which they share."""
        branches = self.local.branches(self.network, self.forward)
        packing = longest > int(self.local.until_packed(state, self.left(state)).min())
        return dataclasses.replace(branches, tail=PackedTail) if packing else branches

    def check_state(self, state: L) -> None:
        """The cache holds what stays of a segment, and of the open one no more than has been read."""
        super().check_state(state)
        self.local.check(state)
