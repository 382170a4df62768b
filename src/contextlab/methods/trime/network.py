"""A backbone that also gives what memory is made of: the input of its last feed-forward network, after its norm.

Legend: B rows, T tokens, W width of the model, C = 2 W that of hidden states together with representations.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from contextlab.attention import Attend, in_this_thread
from contextlab.backbone import Backbone, linear_layers
from contextlab.errors import UserError


class RepresentingBackbone(Backbone):
    """A backbone whose final states are followed by the representation of the context: `hidden_BTC`, with C = 2 W."""

    def __init__(self, backbone: Backbone, network: Backbone) -> None:
        """Look into a network.

        Args:
            backbone: the frozen model.
            network: the same, or with updates beside its layers.

        Raises:
            UserError: when the last block has no feed-forward network.
        """
        super().__init__(network.model, network.tokenizer, network.name)
        self.max_positions, self.compiled = network.max_positions, network.compiled
        last = (
            layer for layer in linear_layers(backbone) if layer.block == backbone.layers - 1 and not layer.of_attention
        )
        first = next(last, None)
        if first is None:
            raise UserError(
                f"{type(backbone.model).__name__} has no feed-forward network in its last block: use a Llama-, GPT-2- "
                "or OPT-style model."
            )
        self._feed_forward: nn.Module = network.model.get_submodule(first.path)

    def forward(self, tokens_BT: Tensor, position_BT: Tensor, attend: Attend) -> Tensor:
        """`hidden_BTC`: hidden states after the final norm, followed by the representations."""
        inputs: list[Tensor] = []

        def enter(_layer: nn.Module, args: tuple[Any, ...]) -> None:
            inputs.append(args[0])

        hook = self._feed_forward.register_forward_pre_hook(in_this_thread(enter))
        try:
            hidden_BTW = super().forward(tokens_BT, position_BT, attend)
        finally:
            hook.remove()
        # Some models flatten rows and tokens in front of the layer.
        return torch.cat((hidden_BTW, inputs[-1].view_as(hidden_BTW)), dim=-1)
