"""Learning a context by heart: epochs over its blocks, until the loss of those held back has stopped falling."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Sequence

import torch
from torch import Tensor

from contextlab.backbone import Backbone
from contextlab.errors import UserError
from contextlab.methods.finetune.blocks import ColdBlock, divided
from contextlab.methods.finetune.config import FinetuneConfig
from contextlab.methods.parts.adaptable import Adaptable, logprobs_within
from contextlab.methods.parts.rules import SGD, Adam, Rule

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8


def rule_of(config: FinetuneConfig) -> Rule:
    """The optimiser, which turns a gradient into an update."""
    assert config.lr is not None
    return SGD(config.lr) if config.rule == "sgd" else Adam(config.lr, BETA1, BETA2, EPS)


class Fit:
    """Fine-tunes a model; every context begins with the same weights and the same random numbers.

    Args:
        network: that reads.
        model: its weights that learn.
        config: how.
    """

    def __init__(self, network: Backbone, model: Adaptable, config: FinetuneConfig) -> None:
        self.network, self.model, self.config = network, model, config
        self.rule = rule_of(config)

    def __call__(self, blocks: Sequence[ColdBlock]) -> list[Tensor]:
        """The weights that have learned the blocks; with blocks held back those of the best epoch, or those of before.

        Raises:
            UserError: when the loss is not finite.
        """
        draw = random.Random(self.config.seed)
        learned, held_back = divided(blocks, self.config.held_back, draw)
        weights = [w.clone() for w in self.model.trained]
        m, v = ([torch.zeros_like(w) for w in weights] if self.rule.moments else [] for _ in range(2))
        best, least, worse, count = weights, math.inf, 0, 0
        if held_back:
            best, least = [w.clone() for w in weights], self.loss(weights, held_back)
        for _ in range(self.config.epochs):
            order = draw.sample(learned, len(learned))
            for begin in range(0, len(order), self.config.batch):
                gradients = self._gradients(weights, order[begin : begin + self.config.batch])
                count += 1
                self.rule.update(weights, gradients, m, v, count)
            if held_back and (loss := self.loss(weights, held_back)) < least:
                best, least, worse = [w.clone() for w in weights], loss, 0
            elif held_back:
                worse += 1
                if worse == self.config.patience:
                    break
        if not all(bool(w.isfinite().all()) for w in best):
            raise self._diverged()
        return best

    def loss(self, weights: Sequence[Tensor], blocks: Sequence[ColdBlock]) -> float:
        """Nats per token of blocks.

        Raises:
            UserError: when it is not finite.
        """
        sums = [float(self.model.run(weights, functools.partial(self._predict, block))[0].sum()) for block in blocks]
        loss = -sum(sums) / sum(block.count for block in blocks)
        if not math.isfinite(loss):
            raise self._diverged()
        return loss

    def _gradients(self, weights: Sequence[Tensor], batch: Sequence[ColdBlock]) -> list[Tensor]:
        """Of the mean loss over the tokens of a batch; block by block, so that one block's activations are held."""
        total = sum(block.count for block in batch)
        sums: list[Tensor] = []
        for block in batch:
            logprobs, _, gradients = self.model.gradients(weights, functools.partial(self._predict, block))
            if not bool(logprobs.isfinite().all()):
                raise self._diverged()
            share = block.count / total
            if sums:
                for sum_, gradient in zip(sums, gradients, strict=True):
                    sum_.add_(gradient, alpha=share)
            else:
                sums = [gradient.mul(share) for gradient in gradients]
        return sums

    def _predict(self, block: ColdBlock) -> tuple[Tensor, None]:
        return logprobs_within(self.network, block.tokens_1T, block.scored_t), None

    def _diverged(self) -> UserError:
        return UserError(
            f"Fine-tuning diverged: its loss is not finite; use a smaller lr than {self.config.lr:g}, or fewer epochs."
        )
