"""The side network: blocks beside the frozen backbone, joined by cross-network residuals (LongMem, section 2.2).

Legend: B rows, T tokens, C width, H query heads, L layers that read a bank.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from contextlab import attention
from contextlab.backbone import Backbone
from contextlab.errors import UserError
from contextlab.methods.longmem.config import LongMemConfig
from contextlab.methods.longmem.update import SideUpdate

UPDATE_PROJECTIONS = ("o_proj", "down_proj", "c_proj", "out_proj", "fc_out", "dense", "dense_4h_to_h")
SMALL_GATE = -2.0
"""Gate of a memory that is opened a little, a weight of 0.12."""


class SideNetwork(nn.Module):
    """Copies of some backbone blocks, a final norm and the gates of the layers that read a bank.

    A block's output is carried as the backbone's state plus a difference, y_l = h_rl + d_l with
    d_{l+1} = d_l + block(y_l) - y_l, which is equation 1 summed up; a block that adds nothing leaves exactly the
    backbone's state. With init=difference, where block l copies the layer that makes h_{rl+1} of h_rl, it is
    d_{l+1} = block(y_l) - h_{rl+1}: a block that reads what the backbone reads leaves exactly the backbone's state.

    Attributes:
        reading: side blocks that read a bank, and the backbone layer whose keys and values it holds.
        banked: these layers, each once.
        first: the lowest side block that there is; below it nothing could differ from the backbone.
        update: what is learned instead of the blocks themselves, with a rank.
    """

    def __init__(self, backbone: Backbone, config: LongMemConfig) -> None:
        super().__init__()
        parts = attention.anatomy(backbone.model)
        depth, step = len(parts.layers), config.reduction
        if depth % step:
            raise UserError(
                f"reduction={step} does not divide the backbone's {depth} layers: choose a divisor of {depth}."
            )
        self.step, self.last_residual, self.init = step, config.last_residual, config.init
        self.rotary_scale = backbone.rotary_scale
        self.reading = config.reading(depth)
        self.banked = list(dict.fromkeys(self.reading.values()))
        self.first = min(self.reading) if config.init == "difference" else 0
        copied = _shared_copy if config.rank else _trainable_copy
        sources = config.copied(depth)[self.first :]
        with backbone.exclusive():
            self.blocks = nn.ModuleList(copied(parts.layers[source]) for source in sources)
            self.norm = copied(parts.norm)
        gate = config.gate if config.gate is not None else SMALL_GATE if config.init == "memory" else 0.0
        # The paper's one layer has the name and shape of the released weights.
        shape = (backbone.heads,) if len(self.reading) == 1 else (len(self.reading), backbone.heads)
        gates = nn.Parameter(torch.full(shape, gate, device=backbone.device, dtype=torch.float32))
        self.register_parameter("gate_H" if len(shape) == 1 else "gate_LH", gates)
        if config.side_arithmetic == "released":
            _released_arithmetic(self)
        if config.init in ("identity", "memory"):
            _silence(self.blocks, self.reading if config.init == "memory" else (), learn=not config.rank)
        self.update = SideUpdate(self.blocks, gates, config.rank) if config.rank else None

    @property
    def learned(self) -> nn.Module:
        """All that training changes."""
        return self if self.update is None else self.update

    def gate(self, block: int) -> Tensor:
        """`gate_H` of a side block that reads a bank."""
        if len(self.reading) == 1:
            return self.get_parameter("gate_H")
        return self.get_parameter("gate_LH")[list(self.reading).index(block)]

    def forward(self, states: Sequence[Tensor], final_BTC: Tensor, attend: attention.Attend) -> list[Tensor]:
        """The side states.

        Args:
            states: `hidden_BTC` of the backbone, the embeddings first, after every r-th block; after every block with
                init=difference.
            final_BTC: the backbone's last state after its final norm.
            attend: attention of the side blocks, called in order.

        Returns:
            `y_BTC` before every block and after the last, without the side network's norm.
        """
        with self.seam():
            return self.states(states, final_BTC, attend)

    @contextmanager
    def seam(self) -> Iterator[None]:
        """Route the attention of all blocks through an `attend`, for the duration of a block of code."""
        with ExitStack() as stack:
            for block in self.blocks:
                stack.enter_context(attention.seam(attention.config_of(block), self.rotary_scale))
            yield

    def states(self, states: Sequence[Tensor], final_BTC: Tensor, attend: attention.Attend) -> list[Tensor]:
        """`forward` inside `seam`."""
        if self.init == "difference":
            return self._differences(states, attend)
        difference_BTC = torch.zeros_like(states[0])
        y_BTC = states[0]
        outputs = [y_BTC]
        for i, block in enumerate(self.blocks):
            difference_BTC = difference_BTC + attention.run_layer(block, y_BTC, attend, self.rotary_scale) - y_BTC
            last = i == len(self.blocks) - 1 and self.last_residual == "normed"
            y_BTC = (final_BTC if last else states[i + 1]) + difference_BTC
            outputs.append(y_BTC)
        return outputs

    def _differences(self, states: Sequence[Tensor], attend: attention.Attend) -> list[Tensor]:
        outputs = [states[self.step * self.first]]
        for i, block in enumerate(self.blocks, start=self.first):
            out_BTC = attention.run_layer(block, outputs[-1], attend, self.rotary_scale)
            difference_BTC = out_BTC - states[self.step * i + 1]
            outputs.append(states[self.step * (i + 1)] + difference_BTC)
        return outputs


def _trainable_copy(module: nn.Module) -> Any:
    copied = copy.deepcopy(module)
    for parameter in copied.parameters():
        parameter.requires_grad_(True)
    return copied


def _shared_copy(module: nn.Module) -> Any:
    """A module with separate hooks and settings, whose weights are those of the original."""
    return copy.deepcopy(module, {id(parameter): parameter for parameter in module.parameters()})


def _silence(blocks: nn.ModuleList, open_blocks: Collection[int], *, learn: bool) -> None:
    """Zero the projections that write into the residual stream, but for the attention's of open blocks.

    Zeros are new parameters: the copies may share theirs with the backbone.
    """
    for i, block in enumerate(blocks):
        for name, module in block.named_modules():
            is_open = i in open_blocks and ("attn" in name or "attention" in name)
            for part, parameter in list(module.named_parameters(recurse=False)):
                if name.rpartition(".")[2] in UPDATE_PROJECTIONS and not (is_open and part == "weight"):
                    setattr(module, part, nn.Parameter(torch.zeros_like(parameter), requires_grad=learn))


def _released_arithmetic(network: SideNetwork) -> None:
    """Exact gelu and a norm epsilon of 1e-5, whatever the copied layers compute with."""
    for module in network.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 1e-5
        if isinstance(module, nn.GELU):
            module.approximate = "none"
