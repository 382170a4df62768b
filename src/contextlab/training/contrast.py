"""Objectives that compare the memory of a document with another document's.

A loss alone is lowered most easily by learning the domain, which another document's memory serves as well; only the
difference of the two measures what was learned from this document. A part of this difference can be harm, which
another document's memory does beside no memory at all.

Legend: B rows, T tokens of a segment.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import pydantic
from torch import Tensor
from torch.nn.functional import relu, softplus

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


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class HarmConfig(ObjectiveConfig):
    """Settings of the harm objective.

    Attributes:
        weight: of the harm beside the own loss, both in nats per token.
    """

    weight: pydantic.PositiveFloat = 1.0


class Compared(Objective):
    """own + penalty(own, other) per row, losses of the same tokens after the own and the next row's state."""

    def __call__(self, state: State, batch: Batch) -> Outcome:
        """Learn from the batch twice; rows without a history count with their own loss alone.

        Raises:
            UserError: when there is one row.
        """
        rows = len(batch.lengths_B)
        if rows < 2:
            raise UserError("The objective needs another row's memory: use --rows 2 or more.")
        others = of_next_rows(state)
        state, own = self.method.learn(state, batch.tokens_BT, batch.lengths_B)
        _, other = self.method.learn(others, batch.tokens_BT, batch.lengths_B)
        own_B, other_B = (row_losses(prediction.logprobs_BT, batch) for prediction in (own, other))
        counted_B = batch.counted_BT.sum(1)
        penalty_B = self.penalty(own_B, other_B, batch).masked_fill(batch.fresh_B.to(own_B.device), 0.0)
        loss = ((own_B + penalty_B) * counted_B).sum() * batch.scale
        return Outcome(state, loss, (own_B.detach() * counted_B).sum() * batch.scale)

    @abstractmethod
    def penalty(self, own_B: Tensor, other_B: Tensor, batch: Batch) -> Tensor:
        """What is added to the own loss, in nats per token, for every row; not counted where a row begins a text."""


class Contrast(Compared):
    """own + softplus(weight (own - other)): the own memory is to predict better than another's."""

    Config: ClassVar[type[Config]] = ContrastConfig

    def penalty(self, own_B: Tensor, other_B: Tensor, batch: Batch) -> Tensor:
        """softplus(weight (own - other))."""
        return contrast(own_B, other_B, self.config.weight)


class Harm(Compared):
    """own + weight max(0, other - none): another's memory is to predict no worse than an empty one."""

    Config: ClassVar[type[Config]] = HarmConfig

    def penalty(self, own_B: Tensor, other_B: Tensor, batch: Batch) -> Tensor:
        """weight max(0, other - none), where nothing is learned from the loss after an empty memory."""
        empty = self.method.start(len(batch.lengths_B))
        _, logprobs_BT = self.method.read(empty, batch.tokens_BT, batch.lengths_B)
        assert logprobs_BT is not None
        penalty_B: Tensor = self.config.weight * relu(other_B - row_losses(logprobs_BT, batch))
        return penalty_B


def row_losses(logprobs_BT: Tensor, batch: Batch) -> Tensor:
    """Nats per token that counts, as `loss_B`."""
    counted_BT = batch.counted_BT
    return -(logprobs_BT * counted_BT).sum(1) / counted_BT.sum(1).clamp(min=1)


def of_next_rows(state: S) -> S:
    """A state whose every row is the one of the next row, the last one's that of the first."""
    rows = state.batch_size
    return state.index([(row + 1) % rows for row in range(rows)])


def contrast(own_B: Tensor, other_B: Tensor, weight: float) -> Tensor:
    """softplus(weight (own - other)): near zero where the own memory predicts better by more than 1 / weight."""
    return softplus(weight * (own_B - other_B))
