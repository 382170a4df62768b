"""A low-rank update of frozen side blocks: all that such a network learns, beside its gates.

Legend: I inputs and O outputs of a linear layer, r rank.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D


class LowRankUpdate(nn.Module):
    """Adds x A B to what a linear layer makes of x, with B zero at first: it changes nothing, and B has a gradient."""

    def __init__(self, inputs: int, outputs: int, rank: int, like: Tensor) -> None:
        super().__init__()
        self.down_rI = nn.Parameter(like.new_empty(rank, inputs).normal_(std=inputs**-0.5))
        self.up_Or = nn.Parameter(like.new_zeros(outputs, rank))

    def forward(self, _layer: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> Tensor:
        """The changed output of a layer; see `nn.Module.register_forward_hook`."""
        down_rI, up_Or = (part.to(out.dtype) for part in (self.down_rI, self.up_Or))
        return out + functional.linear(functional.linear(args[0], down_rI), up_Or)


class SideUpdate(nn.Module):
    """An update of every linear layer of side blocks, and the gates.

    Args:
        blocks: with weights that stay as they are.
        gate: of the layers that read a bank.
        rank: of every update.
    """

    def __init__(self, blocks: Iterable[nn.Module], gate: nn.Parameter, rank: int) -> None:
        super().__init__()
        self.gate = gate
        self.blocks = nn.ModuleList(nn.ModuleDict(_updates(block, rank)) for block in blocks)


def _updates(block: nn.Module, rank: int) -> dict[str, nn.Module]:
    updates: dict[str, nn.Module] = {}
    for name, layer in block.named_modules():
        if isinstance(layer, nn.Linear | Conv1D):
            weight: Any = layer.weight
            outputs, inputs = weight.T.shape if isinstance(layer, Conv1D) else weight.shape
            like = weight.detach().new_empty(0, dtype=torch.promote_types(weight.dtype, torch.float32))
            updates[name.replace(".", "_")] = update = LowRankUpdate(inputs, outputs, rank, like)
            layer.register_forward_hook(update)
    return updates
