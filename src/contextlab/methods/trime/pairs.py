"""The memory of TRIME: representations of contexts, and the tokens that followed them.

Legend: B rows, t queries of a block, J pairs, W width of the model.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from contextlab import states
from contextlab.methods.parts.newest import newest


@dataclasses.dataclass(frozen=True)
class Seen:
    """Pairs, and which of them each query sees.

    Attributes:
        f_BJW: representation of a context.
        token_BJ: the token that followed it.
        seen_BtJ: whether a query sees the pair.
    """

    f_BJW: Tensor
    token_BJ: Tensor
    seen_BtJ: Tensor

    @classmethod
    def before(cls, f_BJW: Tensor, token_BJ: Tensor, queries: int) -> Seen:
        """Pairs of a block, of which each of its last queries sees those before its own."""
        rows, count = token_BJ.shape
        index_J = torch.arange(count, device=token_BJ.device)
        before_tJ = index_J < index_J[count - queries :, None]
        return cls(f_BJW, token_BJ, before_tJ.expand(rows, -1, -1))


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Pairs in the order of reading, packed to the left in every row.

    Attributes:
        f_BJW: representation of a context.
        token_BJ: the token that followed it.
        used_B: pairs of each row, on the host.
    """

    f_BJW: Tensor
    token_BJ: Tensor
    used_B: Tensor

    @classmethod
    def empty(cls, rows: int, like: Tensor) -> Pairs:
        """No pairs, of representations like `f_W`."""
        none_BJ = torch.zeros(rows, 0, dtype=torch.int64, device=like.device)
        return cls(like.new_zeros(rows, 0, like.shape[-1]), none_BJ, torch.zeros(rows, dtype=torch.int64))

    def unpadded(self) -> Pairs:
        """The pairs without slots that no row uses, as views."""
        used = int(self.used_B.max())
        return Pairs(self.f_BJW[:, :used], self.token_BJ[:, :used], self.used_B)

    def seen(self, queries: int) -> Seen:
        """The pairs, all of which some queries see."""
        real_BJ = (torch.arange(self.token_BJ.shape[1]) < self.used_B[:, None]).to(self.token_BJ.device)
        return Seen(self.f_BJW, self.token_BJ, real_BJ[:, None].expand(-1, queries, -1))

    def extended(self, newer: Pairs, rows_B: Tensor, most: int) -> Pairs:
        """The newest pairs of these with newer ones after them, in some rows; the other rows stay as they are."""
        new_B = torch.where(rows_B, newer.used_B, 0)
        slots_BJ, kept_B = newest(self.used_B, self.token_BJ.shape[1], new_B, most)
        f_BJW = torch.cat((self.f_BJW, newer.f_BJW), dim=1)
        token_BJ = torch.cat((self.token_BJ, newer.token_BJ), dim=1)
        slots_BJ = slots_BJ.clamp(max=max(token_BJ.shape[1] - 1, 0)).to(token_BJ.device)
        taken_BJW = f_BJW.gather(1, slots_BJ[..., None].expand(-1, -1, f_BJW.shape[2]))
        return Pairs(taken_BJW, token_BJ.gather(1, slots_BJ), kept_B)

    def without(self, rows_B: Tensor) -> Pairs:
        """No pairs in some rows; the other rows stay as they are."""
        used_B = torch.where(rows_B, 0, self.used_B)
        longest = int(used_B.max())
        # A slice would keep all of the memory.
        return Pairs(self.f_BJW[:, :longest].clone(), self.token_BJ[:, :longest].clone(), used_B)

    def check(self, name: str, most: int, vocabulary: int) -> None:
        """Refuse loaded pairs with more in use than there are or than `most`, or with tokens that do not exist.

        Raises:
            states.Misfit: naming what is wrong.
        """
        slots = self.token_BJ.shape[1]
        if self.f_BJW.shape[1] != slots:
            raise states.Misfit(f"the parts of {name} differ in length")
        states.within(f"pairs of {name} in use", self.used_B, 0, min(slots, most))
        states.within(f"tokens of {name}", self.token_BJ, 0, vocabulary - 1)
