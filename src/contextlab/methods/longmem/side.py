"""The side network: blocks beside the frozen backbone, joined by cross-network residuals (LongMem, section 2.2).

Legend: B rows, T tokens, C width, H query heads, K key/value heads, D head width.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from contextlab import attention
from contextlab.backbone import Backbone
from contextlab.errors import UserError
from contextlab.methods.longmem.config import LongMemConfig

UPDATE_PROJECTIONS = ("o_proj", "down_proj", "c_proj", "out_proj", "fc_out")


class SideNetwork(nn.Module):
    """Copies of every r-th backbone block, a final norm and the gate of the memory layer.

    A block's output is carried as the backbone's state plus a difference, y_l = h_rl + d_l with
    d_{l+1} = d_l + block(y_l) - y_l, which is equation 1 summed up; a block that adds nothing leaves exactly the
    backbone's state.
    """

    def __init__(self, backbone: Backbone, config: LongMemConfig) -> None:
        super().__init__()
        parts = attention.anatomy(backbone.model)
        depth, step = len(parts.layers), config.reduction
        if depth % step:
            raise UserError(
                f"reduction={step} does not divide the backbone's {depth} layers: choose a divisor of {depth}."
            )
        self.step, self.last_residual = step, config.last_residual
        sources = [min(step * i + 1, depth - 1) for i in range(depth // step)]
        self.blocks = nn.ModuleList(_trainable_copy(parts.layers[source]) for source in sources)
        self.norm = _trainable_copy(parts.norm)
        self.gate_H = nn.Parameter(torch.zeros(backbone.heads, device=backbone.device, dtype=torch.float32))
        if config.side_arithmetic == "released":
            _released_arithmetic(self)
        if config.init == "identity":
            _silence(self.blocks)

    def forward(self, states: Sequence[Tensor], final_BTC: Tensor, attend: attention.Attend) -> list[Tensor]:
        """The side states.

        Args:
            states: `hidden_BTC` of the backbone after every r-th block, the embeddings first.
            final_BTC: the backbone's last state after its final norm.
            attend: attention of the side blocks, called in order.

        Returns:
            `y_BTC` before every block and after the last, without the side network's norm.
        """
        difference_BTC = torch.zeros_like(states[0])
        y_BTC = states[0]
        outputs = [y_BTC]
        for i, block in enumerate(self.blocks):
            with attention.seam(_config(block)):
                difference_BTC = difference_BTC + attention.run_layer(block, y_BTC, attend) - y_BTC
            last = i == len(self.blocks) - 1 and self.last_residual == "normed"
            y_BTC = (final_BTC if last else states[i + 1]) + difference_BTC
            outputs.append(y_BTC)
        return outputs


def _trainable_copy(module: nn.Module) -> Any:
    copied = copy.deepcopy(module)
    for parameter in copied.parameters():
        parameter.requires_grad_(True)
    return copied


def _config(block: nn.Module) -> Any:
    return next(module.config for module in block.modules() if hasattr(module, "config"))


def _silence(blocks: nn.ModuleList) -> None:
    """Zero the projections that write into the residual stream."""
    for name, parameter in blocks.named_parameters():
        if name.split(".")[-2] in UPDATE_PROJECTIONS:
            nn.init.zeros_(parameter)


def _released_arithmetic(network: SideNetwork) -> None:
    """Exact gelu and a norm epsilon of 1e-5, whatever the copied layers compute with."""
    for module in network.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 1e-5
        if isinstance(module, nn.GELU):
            module.approximate = "none"
