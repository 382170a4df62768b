"""The linear layers whose weights are adapted, by name pattern, and hooks that adapt them for the duration of a block.

Legend: B rows, T tokens, C width of the model, I inputs and O outputs of an adapted layer, r rank.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from contextlab.attention import Layout, in_this_thread
from contextlab.backbone import Backbone
from contextlab.errors import UserError

Enter: TypeAlias = Callable[[int, Tensor], None]
"""Called with the number of an adapted layer and the states `hidden_BTC` that enter its block."""
Leave: TypeAlias = Callable[[int, Tensor, Tensor], Tensor | None]
"""Called with the number of a layer, its inputs `x_BTI` and the states `hidden_BTC` that leave its block; what it
returns is added to these states."""


@dataclasses.dataclass(frozen=True)
class Pair:
    """A weight change up @ down of one layer, rows first; the scale is part of `up`.

    Attributes:
        up: `up_BOr`.
        down: `down_BrI`.
    """

    up: Tensor
    down: Tensor

    def with_rows(self, rows: Tensor, other: Pair) -> Pair:
        """The change with that of another one in some rows, in their order."""
        return Pair(self.up.index_copy(0, rows, other.up), self.down.index_copy(0, rows, other.down))


@dataclasses.dataclass(frozen=True)
class Target:
    """One adapted layer: its name in the model, the block it is part of, itself, its inputs and outputs, and the number
    of the block.
    """

    name: str
    block: nn.Module
    layer: nn.Module
    inputs: int
    outputs: int
    depth: int


def find(backbone: Backbone, pattern: str) -> list[Target]:
    """The linear layers inside the blocks whose name in the model matches one of the patterns, separated by |.

    Raises:
        UserError: for a model without a list of blocks, or when nothing matches.
    """
    stacks = [
        (name, module)
        for name, module in backbone.model.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == backbone.layers
    ]
    if not stacks:
        raise UserError(
            f"{type(backbone.model).__name__} has no list of blocks to adapt: use a Llama-, GPT-2- or OPT-style model."
        )
    prefix, blocks = stacks[0]
    targets = [
        Target(f"{prefix}.{i}.{name}", block, layer, *_size(layer), depth=i)
        for i, block in enumerate(blocks)
        for name, layer in block.named_modules()
        if isinstance(layer, nn.Linear | Conv1D)
    ]
    matching = [p for p in targets if any(fnmatchcase(p.name, part.strip()) for part in pattern.split("|"))]
    if not matching:
        names = dict.fromkeys(p.name.removeprefix(prefix).split(".", 2)[2] for p in targets)
        raise UserError(
            f"modules={pattern} matches no linear layer of {backbone.name}: choose of {', '.join(names)}, as in *NAME."
        )
    return matching


def added_alone(backbone: Backbone, targets: list[Target]) -> list[Target]:
    """The layers, when each is the only one of its block and its output is added to the residual stream as it is.

    Raises:
        UserError: when they are not.
    """
    names = ", ".join(dict.fromkeys(target.name.split(f".{target.depth}.", 1)[1] for target in targets))
    if len({target.depth for target in targets}) < len(targets):
        raise UserError(f"modules name several layers of a block ({names}): name one whose output is added.")
    if not is_added(backbone, targets):
        raise UserError(
            f"{backbone.name} changes the outputs of modules={names} before it adds them to its residual stream: name "
            "other layers, or use another backbone."
        )
    return targets


def is_added(backbone: Backbone, targets: list[Target]) -> bool:
    """Whether the outputs of layers are added to the residual stream as they are, so that a change of them changes the
    states that leave their block by as much. The lowest is looked at.
    """
    target, outputs = targets[0], list[Tensor]()
    if target.outputs != backbone.width:
        return False
    tokens_12 = torch.tensor([[0, 1]], device=backbone.device)
    position_12 = torch.arange(2, device=backbone.device)[None]
    probe_11I = torch.linspace(-1, 1, target.inputs, device=backbone.device).view(1, 1, -1)
    for scale in (0.0, 1.0):
        pair = Pair(torch.full((1, target.outputs, 1), scale, device=backbone.device), probe_11I)
        with (
            torch.no_grad(),
            adapted([target], [pair].__getitem__),
            observed([target], lambda _, x_BTI, hidden_BTC: outputs.extend((x_BTI, hidden_BTC))),
        ):
            backbone.forward(tokens_12, position_12, backbone.reader(1, Layout(position_12)))
    x_BTI, plain_BTC, _, changed_BTC = outputs
    added_BT1 = (x_BTI * probe_11I).sum(-1, keepdim=True)
    largest = added_BT1.abs().max() + changed_BTC.abs().max() / 50
    return bool(((changed_BTC - plain_BTC - added_BT1).abs() <= 0.05 * largest).all())


def transposed(target: Target) -> bool:
    """Whether the layer keeps its weight as inputs x outputs."""
    return isinstance(target.layer, Conv1D)


@contextmanager
def adapted(targets: list[Target], pair: Callable[[int], Pair], enter: Enter | None = None) -> Iterator[None]:
    """While entered, layer i of `targets` adds pair(i) to its weight; the weight itself stays as it is.

    Args:
        targets: from `find`.
        pair: the change of a layer, one row for each of the batch.
        enter: called for layer i when hidden states enter its block, before pair(i).
    """
    with ExitStack() as stack:
        for i, target in enumerate(targets):
            if enter is not None:
                entering = in_this_thread(functools.partial(_enter, functools.partial(enter, i)))
                stack.callback(target.block.register_forward_pre_hook(entering, with_kwargs=True).remove)
            leaving = in_this_thread(functools.partial(_add, functools.partial(pair, i)))
            stack.callback(target.layer.register_forward_hook(leaving).remove)
        yield


@contextmanager
def observed(targets: list[Target], leave: Leave) -> Iterator[None]:
    """While entered, `leave` sees every layer of `targets` when its block has been computed, the lowest first."""
    with ExitStack() as stack:
        for i, target in enumerate(targets):
            inputs: list[Tensor] = []
            taking = in_this_thread(functools.partial(_take, inputs))
            stack.callback(target.layer.register_forward_pre_hook(taking).remove)
            leaving = in_this_thread(functools.partial(_leave, functools.partial(leave, i), inputs))
            stack.callback(target.block.register_forward_hook(leaving).remove)
        yield


def _size(layer: Any) -> tuple[int, int]:
    return (layer.nx, layer.nf) if isinstance(layer, Conv1D) else (layer.in_features, layer.out_features)


def _enter(enter: Callable[[Tensor], None], _block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    enter(args[0] if args else kwargs["hidden_states"])


def _add(pair: Callable[[], Pair], _layer: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> Tensor:
    change = pair()
    up_BOr, down_BrI = change.up.to(out.dtype), change.down.to(out.dtype)
    # Some models flatten rows and tokens in front of a layer.
    x_BTI, out_BTO = (x.reshape(len(up_BOr), -1, x.shape[-1]) for x in (args[0], out))
    return torch.baddbmm(out_BTO, torch.bmm(x_BTI, down_BrI.mT), up_BOr.mT).view_as(out)


def _take(inputs: list[Tensor], _layer: nn.Module, args: tuple[Tensor, ...]) -> None:
    inputs.append(args[0])


def _leave(leave: Callable[[Tensor, Tensor], Tensor | None], inputs: list[Tensor], *call: Any) -> Any:
    out = call[-1]
    hidden_BTC = out[0] if isinstance(out, tuple) else out
    x_BTI = inputs.pop()
    more_BTC = leave(x_BTI.reshape(*hidden_BTC.shape[:2], -1), hidden_BTC)
    if more_BTC is None:
        return None
    changed_BTC = hidden_BTC + more_BTC.to(hidden_BTC.dtype)
    return (changed_BTC, *out[1:]) if isinstance(out, tuple) else changed_BTC
