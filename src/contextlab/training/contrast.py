"""The contrast objective: predict a document better from its own memory than from another document's.

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
from contextlab.method import S, State
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
    """own + softplus(weight (own - other)) per row, for the same tokens after the own and the next row's state."""

    Config: ClassVar[type[Config]] = ContrastConfig

    def __call__(self, state: State, batch: Batch) -> Outcome:
        """Learn from the batch twice; rows without a history count with their own loss alone.

        Raises:
            UserError: when there is one row.
        """
        rows = len(batch.lengths_B)
        if rows < 2:
            raise UserError("The objective contrast needs another row's memory: use --rows 2 or more.")
        others = of_next_rows(state)
        state, own = self.method.learn(state, batch.tokens_BT, batch.lengths_B)
        _, other = self.method.learn(others, batch.tokens_BT, batch.lengths_B)
        counted_B = batch.counted_BT.sum(1)
        own_B, other_B = (
            -(prediction.logprobs_BT * batch.counted_BT).sum(1) / counted_B.clamp(min=1) for prediction in (own, other)
        )
        contrast_B = contrast(own_B, other_B, self.config.weight).masked_fill(batch.fresh_B.to(own_B.device), 0.0)
        loss = ((own_B + contrast_B) * counted_B).sum() * batch.scale
        return Outcome(state, loss, (own_B.detach() * counted_B).sum() * batch.scale)


def of_next_rows(state: S) -> S:
    """A state whose every row is the one of the next row, the last one's that of the first."""
    rows = state.batch_size
    return state.index([(row + 1) % rows for row in range(rows)])


def contrast(own_B: Tensor, other_B: Tensor, weight: float) -> Tensor:
    """softplus(weight (own - other)): near zero where the own memory predicts better by more than 1 / weight."""
    return softplus(weight * (own_B - other_B))
