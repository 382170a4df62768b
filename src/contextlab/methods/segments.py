"""The baselines: causal attention over a local cache, and nothing else.

Legend: B rows, t tokens of a block, T tokens of a pass.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from contextlab.attention import CacheReader, Layout
from contextlab.method import C, Lengths
from contextlab.methods.blocks import BlockMethod
from contextlab.methods.branches import Branches
from contextlab.methods.local_cache import LocalCache, LocalState


class SegmentMethod(BlockMethod[C, LocalState]):
    """A method whose state is its local cache: `local`, which a subclass sets, says all about it."""

    local: LocalCache

    def start(self, batch_size: int = 1, *, ahead: Lengths | None = None) -> LocalState:
        """An empty cache."""
        return self.local.empty(self.network, batch_size, ahead if self.capabilities.segment else None)

    def room(self, state: LocalState) -> Tensor:
        """Up to the end of the segment."""
        return state.left_B

    def reserve(self, state: LocalState, lengths_B: Tensor) -> LocalState:
        """Free slots, as far as the segment goes."""
        return self.local.reserve(state, lengths_B)

    def step(self, state: LocalState, tokens_Bt: Tensor, lengths_B: Tensor) -> tuple[LocalState, Tensor]:
        """Attend to the cache and the new tokens; at a segment's end cut the cache back."""
        hidden_BtC, readers = self.forward(state, tokens_Bt, self.local.layout(state, tokens_Bt.shape[1]))
        return self.local.after(state, readers, lengths_B, self.backbone), hidden_BtC

    def skim(self, state: LocalState, tokens_Bt: Tensor, lengths_B: Tensor) -> LocalState | None:
        """A segment of which nothing is kept need not be computed."""
        return self.local.skim(state)

    def forward(self, state: LocalState, tokens_BT: Tensor, layout: Layout) -> tuple[Tensor, Sequence[CacheReader]]:
        """`hidden_BTC` of tokens that lie behind a state, and the reader that has appended to its cache."""
        reader = self.reader(state, layout)
        return self.local.hidden(self.network, state, tokens_BT, reader), (reader,)

    def memory_alone(self, state: LocalState) -> LocalState:
        """An empty state: the local context is all there is."""
        return self.start(state.batch_size)

    def reader(self, state: LocalState, layout: Layout) -> CacheReader:
        """The attention of one forward pass."""
        return CacheReader(self.backbone, state.kv, layout)

    def continuations(self, state: LocalState, longest: int) -> Branches[LocalState]:
        """Side by side behind the cache."""
        return self.local.branches(self.network, self.forward)

    def check_state(self, state: LocalState) -> None:
        """The cache holds what stays of a segment, and of the open one no more than has been read."""
        super().check_state(state)
        self.local.check(state)
