"""Products in bfloat16 on a GPU: the linear layers compute narrow, and everything between them stays as wide as it is.

Autocast around a whole method would reach caches, banks and summaries, which have their types, and operations
outside of torch, which it does not cast.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

DTYPE = torch.bfloat16


@contextmanager
def narrow_products(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Let every linear layer inside the modules compute under autocast, for the duration of a block.

    Weights stay as they are, gradients have their type, and what a layer returns has the type of its input.
    """
    layers = {part for module in modules for part in module.modules() if isinstance(part, nn.Linear | Conv1D)}
    try:
        for layer in layers:
            vars(layer)["forward"] = functools.partial(_narrow, layer.forward)
        yield
    finally:
        for layer in layers:
            vars(layer).pop("forward", None)


def _narrow(forward: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    with torch.autocast(x.device.type, DTYPE):
        return forward(x).to(x.dtype)
