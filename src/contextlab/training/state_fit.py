"""The states objective: with a chunk as weights, every block computes what it computes with the chunk in view.

The targets are those of `least-squares`, which solves for them. Every block is given the states that the model has with
the chunk in view, so that the layers learn side by side and no gradient passes through the model.

Legend: B rows, T tokens of a chunk, C width of the model, I inputs of a layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from contextlab.attention import Layout
from contextlab.errors import UserError
from contextlab.method import AnyMethod, State
from contextlab.methods.full import Full
from contextlab.methods.least_squares.fit import after_context
from contextlab.methods.least_squares.regression import sizes
from contextlab.methods.parts import targets
from contextlab.methods.parts.context_weights import WeightsMethod
from contextlab.methods.parts.targets import Pair, observed
from contextlab.training.corpus import Corpus
from contextlab.training.objectives import Objective, Outcome
from contextlab.training.probes import segment_of
from contextlab.training.streams import Batch


class StateFit(Objective):
    """Squared error of what weights add to states, relative to what they have to add, the mean over the layers.

    A chunk is read once more, without it in view. What a block lacks is its state with the chunk in view less its state
    without; each token counts in units of its state's size, as with `least-squares(error=relative)`. The first token,
    on which attention rests, lacks nothing: with a context in view it has another role than without.

    Raises:
        UserError: for a method that keeps no context as weights, or whose weights do not add to a block's states.
    """

    def __init__(self, method: AnyMethod, corpus: Corpus, config: Any) -> None:
        super().__init__(method, corpus, config)
        if not isinstance(method, WeightsMethod):
            raise UserError(f"{type(method).__name__} keeps no context as weights: use --objective lm.")
        self.targets = targets.added_alone(method.backbone, method.targets)
        self.full = Full(method.backbone)

    def check(self, segment: int) -> None:
        """Refuse segments that are not one chunk.

        Raises:
            UserError: saying how long a chunk is.
        """
        chunk = segment_of(self.method)
        if segment != chunk:
            raise UserError(f"A segment of {segment} tokens is not one of the method's chunks: use --segment {chunk}.")

    def __call__(self, state: State, batch: Batch) -> Outcome:
        """The error of the rows with a whole chunk; every chunk is a separate text."""
        empty = self.method.start(len(batch.lengths_B))
        tokens_BT = batch.tokens_BT[(batch.lengths_B == segment_of(self.method)).to(batch.tokens_BT.device)]
        if not len(tokens_BT):
            return Outcome(empty, torch.zeros(()), None)
        memory = self.method.memory_alone(self.method.learn_context(self.method.start(len(tokens_BT)), tokens_BT))
        with torch.no_grad():
            errors = self._errors(tokens_BT, memory.pairs)
        return Outcome(empty, torch.stack(errors).mean() * batch.lengths_B.sum(), None)

    def _errors(self, tokens_BT: Tensor, pairs: Sequence[Pair]) -> list[Tensor]:
        """Of every layer, each with a separate graph to its change of weights."""
        rows, length = tokens_BT.shape
        state, _ = self.full.read(self.full.start(rows), tokens_BT, logprobs=False)
        in_view = after_context(self.full, state, tokens_BT, self.targets)
        errors: list[Tensor] = []

        def leave(i: int, x_BTI: Tensor, hidden_BTC: Tensor) -> Tensor:
            lacking_BTC = in_view[i] - hidden_BTC
            lacking_BTC[:, 0] = 0
            size_BT1 = sizes(in_view[i].flatten(0, 1), hidden_BTC.flatten(0, 1)).view(rows, length, 1)
            with torch.enable_grad():
                added_BTC = x_BTI @ pairs[i].down.mT @ pairs[i].up.mT
                off_BTC, whole_BTC = ((x / size_BT1).square() for x in (added_BTC - lacking_BTC, lacking_BTC))
                errors.append(off_BTC.sum() / whole_BTC.sum())
            return lacking_BTC

        position_BT = torch.arange(length, device=tokens_BT.device).expand(rows, -1)
        with observed(self.targets, leave):
            # Models that learn positions see the chunk where it is after itself: the chunk in view alone differs.
            reader = self.method.backbone.reader(rows, Layout(position_BT))
            self.method.backbone.forward(tokens_BT, position_BT + length, reader)
        return errors
