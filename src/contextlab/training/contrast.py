"""The contrast objective: predict a document better behind its own memory than behind another document's.

A loss alone is lowered most easily by learning the domain, which another document's memory serves as well; only the
difference of the two measures what was learned from this document.

Legend: B rows, T tokens of a segment.
"""

from __future__ import annotations

from typing import ClassVar

import pydantic
from torch import Tensor
from torch.nn.functional import softplus

from contextlab.config import Config
from contextlab.errors import UserError
from contextlab.method import State
from contextlab.training.objectives import Objective, ObjectiveConfig, Outcome
from contextlab.training.streams import Batch


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class ContrastConfig(ObjectiveConfig):
    """Settings of the contrast objective.

    Attributes:
        weight: of own - other, in nats per token, inside the softplus.
    """

    weight: pydantic.PositiveFloat = 20.0


class Contrast(Objective):
    """own + softplus(weight (own - other)) per row, for the same tokens behind the own and the next row's state."""

    Config: ClassVar[type[Config]] = ContrastConfig

    def __call__(self, state: State, batch: Batch) -> Outcome:
        """Learn from the batch twice; rows without a history of their own count with their own loss alone.

        Raises:
            UserError: when there is one row.
        """
        rows = len(batch.lengths_B)
        if rows < 2:
            raise UserError("The objective contrast needs another row's memory: use --rows 2 or more.")
        others = state.index([(row + 1) % rows for row in range(rows)])
        state, own = self.method.learn(state, batch.tokens_BT, batch.lengths_B)
        _, other = self.method.learn(others, batch.tokens_BT, batch.lengths_B)
        own_B, other_B = (_nats(one.logprobs_BT, batch.lengths_B) for one in (own, other))
        contrast_B = softplus(self.config.weight * (own_B - other_B)).masked_fill(batch.fresh_B, 0.0)
        loss = ((own_B + contrast_B) * batch.lengths_B).sum()
        return Outcome(state, loss, -own.logprobs_BT.detach().sum())


def _nats(logprobs_BT: Tensor, lengths_B: Tensor) -> Tensor:
    """Mean of - log P over the tokens of every row."""
    return -logprobs_BT.sum(1) / lengths_B
