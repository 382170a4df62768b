"""A backbone whose linear layers carry low-rank updates (Hu et al. 2022), beside the frozen one that it shares with.

The updated model has separate modules and no weights but the updates: every parameter and buffer is the very tensor
of the frozen model, which stays as it is. An update starts at zero, so that both models begin as one.

Legend: I inputs and O outputs of a layer, r rank.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from contextlab import attention
from contextlab.backbone.wrapper import Backbone
from contextlab.errors import UserError

ADAPTER = "default"
SEED = 0
ATTENTION = ("attn", "attention")
OF_QUERIES_AND_OUTPUTS = ("q_proj", "o_proj", "out_proj", "c_proj", "dense")


@dataclasses.dataclass(frozen=True)
class Linear:
    """A linear layer of one of the blocks.

    Attributes:
        block: number of its block.
        name: inside the block.
        path: inside the model.
    """

    block: int
    name: str
    path: str

    @property
    def of_attention(self) -> bool:
        """Whether it makes queries, keys or values, or projects what attention gives."""
        return any(word in part for part in self.name.split(".") for word in ATTENTION)

    @property
    def of_keys_and_values(self) -> bool:
        """Whether keys or values may come from it."""
        return self.of_attention and self.name.rpartition(".")[2] not in OF_QUERIES_AND_OUTPUTS


def linear_layers(backbone: Backbone) -> list[Linear]:
    """The linear layers of all blocks, in order; none for a model without a list of blocks."""
    for prefix, blocks in backbone.model.named_modules():
        if isinstance(blocks, nn.ModuleList) and len(blocks) == backbone.layers:
            return [
                Linear(number, name, f"{prefix}.{number}.{name}")
                for number, block in enumerate(blocks)
                for name, layer in block.named_modules()
                if isinstance(layer, nn.Linear | Conv1D)
            ]
    return []


class UpdatedBackbone(Backbone):
    """A backbone that computes W x + alpha / r B A x in some linear layers; it shares the weights W with another.

    Attributes:
        updates: the matrices A and B of all updated layers, under the layers' paths, as `lora_A` (r x I) and `lora_B`
            (O x r); in float32 at least.
    """

    def __init__(self, backbone: Backbone, layers: Sequence[Linear], rank: int, alpha: int | None = None) -> None:
        """Put updates beside a backbone's layers.

        Args:
            backbone: stays as it is.
            layers: of the backbone, at least one.
            rank: of every update.
            alpha: an update counts alpha / rank; as much as the rank when None.

        Raises:
            UserError: when there is no layer to update, the rank is larger than the model is wide, or the backbone
                has no gradients.
        """
        backbone.check_differentiable()
        if rank > backbone.width:
            raise UserError(f"rank={rank} is larger than {backbone.name} is wide: give at most {backbone.width}.")
        if not layers:
            raise UserError(
                f"{type(backbone.model).__name__} has no linear layers in its blocks that could be updated: use a "
                "Llama-, GPT-2- or OPT-style model, or rank=0."
            )
        with backbone.exclusive():
            model = _sharing_weights(backbone.model)
            updates = _injected(model, [layer.path for layer in layers], rank, alpha or rank)
        super().__init__(model, backbone.tokenizer, backbone.name)
        attention.share_use(self.config, backbone.config)
        self.max_positions, self.compiled = backbone.max_positions, backbone.compiled
        self.updates = _tree(updates)


def _sharing_weights(model: Any) -> Any:
    """A copy of a model's modules around the same parameters and buffers."""
    shared = (*model.parameters(), *model.buffers())
    return copy.deepcopy(model, {id(tensor): tensor for tensor in shared})


def _injected(model: Any, paths: Sequence[str], rank: int, alpha: int) -> dict[str, nn.ModuleDict]:
    """The matrices of updates by the paths of the layers that they are put beside, in place."""
    # Heavy, and needed only where something is updated.
    from peft import LoraConfig, inject_adapter_in_model

    before = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    transposed = any(isinstance(model.get_submodule(path), Conv1D) for path in paths)
    # PEFT scales an update by lora_alpha / r.
    config = LoraConfig(r=rank, lora_alpha=alpha, target_modules=list(paths), fan_in_fan_out=transposed)
    with torch.random.fork_rng(devices=[]):
        inject_adapter_in_model(config, model, ADAPTER)
    for parameter, needed in before:  # which PEFT has frozen, in the model that they are shared with too
        parameter.requires_grad_(needed)
    random = torch.Generator().manual_seed(SEED)
    return {path: _started(model.get_submodule(path), random) for path in paths}


def _started(layer: Any, random: torch.Generator) -> nn.ModuleDict:
    """The matrices of one layer, as they start: the same on every machine, whatever the type of the weights."""
    down, up = layer.lora_A[ADAPTER], layer.lora_B[ADAPTER]
    # Steps of training are too small for the numbers of 16-bit types.
    kind = torch.promote_types(down.weight.dtype, torch.float32)
    bound = layer.in_features**-0.5
    with torch.no_grad():
        for part in (down, up):
            part.to(kind).requires_grad_(True)
        down.weight.copy_(torch.empty(down.weight.shape).uniform_(-bound, bound, generator=random))
        up.weight.zero_()
    return nn.ModuleDict({"lora_A": down, "lora_B": up})


def _tree(modules: Mapping[str, nn.Module]) -> nn.Module:
    """Modules under their dotted paths."""
    root = nn.Module()
    for path, module in modules.items():
        *parents, last = path.split(".")
        node = root
        for name in parents:
            if name not in dict(node.named_children()):
                node.add_module(name, nn.Module())
            node = node.get_submodule(name)
        node.add_module(last, module)
    return root
