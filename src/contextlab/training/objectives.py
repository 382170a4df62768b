"""Objectives of training: each learns from a batch and gives a loss for every token of it.

Legend: B rows, T tokens of a segment.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import pydantic
from torch import Tensor

from contextlab.config import Config
from contextlab.method import AnyMethod, State
from contextlab.training.corpus import Corpus
from contextlab.training.streams import Batch


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The outcome of learning from a batch.

    Attributes:
        state: after it, with its graph.
        loss: the sum over the tokens, with a graph to what is learned.
        nats: - log P summed over the tokens, the same measure for every objective; None for one that predicts none.
    """

    state: State
    loss: Tensor
    nats: Tensor | None


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class ObjectiveConfig(Config):
    """Settings of an objective."""


class Objective(ABC):
    """Learns from batches with one loss; a further one is a class, and a name in `registered`.

    Args:
        method: that learns.
        corpus: that the batches come from.
        config: of the objective.
    """

    Config: ClassVar[type[Config]] = ObjectiveConfig

    def __init__(self, method: AnyMethod, corpus: Corpus, config: Any) -> None:
        self.method, self.corpus, self.config = method, corpus, config

    def check(self, segment: int) -> None:  # noqa: B027
        """Refuse a length of segments, or a corpus, that nothing can be learned from.

        Raises:
            UserError: saying what to give instead.
        """

    def prepare(self, batch: Batch) -> int:
        """Have ready what the loss of a batch needs beside it, before every batch; returns the FLOPs of this."""
        return 0

    @abstractmethod
    def __call__(self, state: State, batch: Batch) -> Outcome:
        """Learn from a batch after a state; rows that begin a document have been restarted."""


class LanguageModel(Objective):
    """The papers' objective: - log P of every token given all before it."""

    def __call__(self, state: State, batch: Batch) -> Outcome:
        """The negative log-probabilities that `learn` gives, of the tokens that count."""
        state, predicted = self.method.learn(state, batch.tokens_BT, batch.lengths_B)
        loss = -(predicted.logprobs_BT * batch.counted_BT).sum() * batch.scale
        return Outcome(state, loss, loss.detach())
