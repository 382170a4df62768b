"""Probes: tokens that are predicted from a memory, and a loss that says what the memory holds of a text.

GenerativeAdapter's paper trains with such probes, which it calls slots (section 3.3): a chunk that was read is
predicted again from nothing but the adapter, the next chunk is predicted after it. What a probe's tokens are compared
with is the same for all methods.

Legend: B rows, T tokens of a probe, P tokens of a context, C width of the model, N positions of all rows, k tokens
kept.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import pydantic
import torch
from torch import Tensor

from contextlab.backbone.distillation import best, cross_entropies
from contextlab.config import Config
from contextlab.errors import UserError
from contextlab.method import AnyMethod, Prediction, State
from contextlab.methods.full import Full
from contextlab.training.contrast import contrast, of_next_rows
from contextlab.training.corpus import Corpus
from contextlab.training.objectives import Objective, ObjectiveConfig, Outcome
from contextlab.training.streams import Batch


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class ProbeConfig(ObjectiveConfig):
    """Settings of every objective with probes.

    Attributes:
        contrast: of own - other, in nats per token, inside the softplus that is added; 0 leaves the contrast out.
        teacher: most probable tokens of the backbone with the context in its prompt that are the target in place of
            the text; 0 predicts the text.
    """

    contrast: pydantic.NonNegativeFloat = 0.0
    teacher: pydantic.NonNegativeInt = 0


@dataclasses.dataclass(frozen=True)
class Probe:
    """Tokens that are predicted from a memory of a context.

    Attributes:
        tokens_BT: right-padded.
        lengths_B: tokens that are real.
        counted_BT: tokens whose loss counts.
        context_BP: what the memory was made of, right-padded; the prompt of the teacher.
        context_B: its real tokens.
    """

    tokens_BT: Tensor
    lengths_B: Tensor
    counted_BT: Tensor
    context_BP: Tensor
    context_B: Tensor


@dataclasses.dataclass(frozen=True)
class Loss:
    """Of one probe, summed over the tokens that count.

    Attributes:
        loss: with a graph.
        nats: - log P of the text.
        count: tokens that count.
    """

    loss: Tensor
    nats: Tensor
    count: float


class ProbeObjective(Objective):
    """Learns from probes; every batch begins with an empty memory, whatever the stream has read before."""

    Config: ClassVar[type[Config]] = ProbeConfig

    def __init__(self, method: AnyMethod, corpus: Corpus, config: Any) -> None:
        super().__init__(method, corpus, config)
        self.full, self.k = Full(method.backbone), min(config.teacher, method.backbone.vocab_size)

    def probe(self, state: State, probe: Probe) -> tuple[State, Loss]:
        """The state after a probe, and its loss; a row alone has nothing to contrast.

        Args:
            state: with the memory of every row's context.
            probe: with at least one token that counts.
        """
        targets = self._targets(probe) if self.k else None
        after, own = self.method.learn(state, probe.tokens_BT, probe.lengths_B)
        own_B = self._means(own, probe, targets)
        loss_B = own_B
        if self.config.contrast and len(own_B) > 1:
            _, other = self.method.learn(of_next_rows(state), probe.tokens_BT, probe.lengths_B)
            loss_B = own_B + contrast(own_B, self._means(other, probe, targets), self.config.contrast)
        nats = -(own.logprobs_BT.detach() * probe.counted_BT).sum()
        counted_B = probe.counted_BT.sum(1)
        return after, Loss((loss_B * counted_B).sum(), nats, float(counted_B.sum()))

    def outcome(self, losses: Sequence[tuple[float, Loss]], batch: Batch) -> Outcome:
        """The mean over the tokens that count in all probes, each with its weight, for every token of the batch."""
        state = self.method.start(len(batch.lengths_B))
        count = sum(weight * term.count for weight, term in losses)
        if not count:
            return Outcome(state, torch.zeros(()), torch.zeros(()))
        scale = float(batch.lengths_B.sum()) / count
        loss = torch.stack([weight * term.loss for weight, term in losses]).sum()
        nats = torch.stack([weight * term.nats for weight, term in losses]).sum()
        return Outcome(state, scale * loss, scale * nats)

    def _means(self, predicted: Prediction, probe: Probe, targets: tuple[Tensor, Tensor] | None) -> Tensor:
        """`loss_B`: mean over the tokens of every row that count."""
        loss_BT = -predicted.logprobs_BT
        if targets is not None:
            hidden_NC = predicted.hidden_BTC.flatten(0, 1)
            loss_BT = cross_entropies(self.method.backbone, hidden_NC, *targets).view_as(loss_BT)
        return (loss_BT * probe.counted_BT).sum(1) / probe.counted_BT.sum(1).clamp(min=1)

    @torch.no_grad()
    def _targets(self, probe: Probe) -> tuple[Tensor, Tensor]:
        """`ids_Nk` and `logprobs_Nk` of the backbone that has the context in its prompt."""
        state = self.full.start(len(probe.lengths_B))
        state, _ = self.full.read(state, probe.context_BP, probe.context_B, logprobs=False)
        _, predicted = self.full.predict(state, probe.tokens_BT, probe.lengths_B)
        return best(self.method.backbone, predicted.hidden_BTC.flatten(0, 1), self.k)


def segment_of(method: AnyMethod) -> int:
    """Tokens after which a method's local context is cold.

    Raises:
        UserError: when it has no such segments.
    """
    segment = method.capabilities.segment
    if segment is None:
        raise UserError(
            f"{type(method).__name__} has no segments that start cold, so that no chunk can be predicted from its "
            "memory alone: use --objective lm, teacher or contrast."
        )
    return segment
