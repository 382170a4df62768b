"""A backbone whose weights are all a method's own, to be learned: from random ones, or on from trained ones."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from contextlab.backbone.wrapper import Backbone


class OwnBackbone(Backbone):
    """A copy of a backbone, which stays as it is, with gradients for every weight.

    Attributes:
        updates: the copy's model: all that training changes.
    """

    def __init__(self, backbone: Backbone) -> None:
        """Copy it.

        Raises:
            UserError: when the backbone has no gradients.
        """
        backbone.check_differentiable()
        with backbone.exclusive():
            model = copy.deepcopy(backbone.model)
        super().__init__(model.requires_grad_(True), backbone.tokenizer, backbone.name)
        self.max_positions, self.compiled = backbone.max_positions, backbone.compiled
        self.updates = self.model

    def logits(self, hidden: Tensor) -> Tensor:
        """Vocabulary logits of final hidden states `(..., C)`, as wide as a model that is wider than float32: rounding
        them would round the gradients of the head.
        """
        logits: Tensor = self.model.get_output_embeddings()(hidden)
        return logits.to(torch.promote_types(torch.float32, logits.dtype))

    def logprobs_of_all(self, hidden_BC: Tensor) -> Tensor:
        """`logprobs_BV`, float32: the whole distribution under every hidden state."""
        return super().logprobs_of_all(hidden_BC).float()
