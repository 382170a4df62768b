"""A context whose tokens are kept until it ends, when a method makes of it all that stays.

Legend: B rows, N tokens of a context.
"""

from __future__ import annotations

import dataclasses
from typing import Self

from torch import Tensor

from contextlab import states
from contextlab.methods.parts.local_cache import LocalState


@dataclasses.dataclass(frozen=True)
class OpenContextState(LocalState):
    """The window that is being read, and the tokens of a context that has not ended.

    Attributes:
        tokens_BN: tokens of a context that has not ended, right-padded; none of one that has.
        context_B: tokens of the whole context, 0 without one.
    """

    tokens_BN: Tensor
    context_B: Tensor

    @property
    def open_B(self) -> Tensor:
        """Rows whose context has not ended."""
        return self.length_B < self.context_B

    def unpadded(self) -> Self:
        """The state without places that no row uses; see `State.unpadded`."""
        kept = int((self.length_B * self.open_B).max())
        return dataclasses.replace(super().unpadded(), tokens_BN=self.tokens_BN[:, :kept]).own(self.owner)

    def check_context(self, vocabulary: int) -> None:
        """Refuse a state without all tokens of its contexts, or with tokens that are not of a vocabulary of this size.

        Raises:
            Misfit: naming the tensor.
        """
        states.within("context_B", self.context_B, 0, states.MOST)
        states.within("tokens_BN", self.tokens_BN, 0, vocabulary - 1)
        states.within("tokens of a context", self.length_B * self.open_B, 0, self.tokens_BN.shape[1])
