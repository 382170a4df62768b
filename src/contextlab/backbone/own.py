"""A backbone whose weights are all a method's own, to be learned: from random ones, or on from trained ones."""

from __future__ import annotations

import copy

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
        super().__init__(copy.deepcopy(backbone.model).requires_grad_(True), backbone.tokenizer, backbone.name)
        self.max_positions = backbone.max_positions
        self.updates = self.model
