"""The state of fine-tuning, and how its rows come together again.

Rows run one at a time, each with its own weights. Legend: B rows, N tokens of a context.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from torch import Tensor

from contextlab import states
from contextlab.methods.parts.local_cache import LocalState
from contextlab.methods.parts.open_context import OpenContextState


@dataclasses.dataclass(frozen=True)
class FinetuneState(OpenContextState):
    """The window that is being read, and the context: its tokens until it ends, from then on weights.

    Attributes:
        weights: of every row, rows first; the trained ones until the context ends.
    """

    weights: tuple[Tensor, ...]

    @property
    def local(self) -> LocalState:
        """The window alone."""
        return LocalState(self.length_B, self.pending_BC, self.kv, self.left_B)

    def with_local(self, local: LocalState) -> FinetuneState:
        """The state with another window."""
        return dataclasses.replace(
            self, length_B=local.length_B, pending_BC=local.pending_BC, kv=local.kv, left_B=local.left_B
        )


def joined(state: FinetuneState, before: Sequence[FinetuneState], after: Sequence[FinetuneState]) -> FinetuneState:
    """The rows as one state; weights that no row has changed stay shared."""
    if all(new.weights is old.weights for new, old in zip(after, before, strict=True)):
        together = states.joined([dataclasses.replace(row, weights=()) for row in after])
        return dataclasses.replace(together, weights=state.weights)
    return after[0] if len(after) == 1 else states.joined(after)
