"""Blocks that are computed again in the backward pass, so that their activations need not be kept.

Attention is not: a method's `attend` appends to caches, which must happen once. What its backward pass needs is kept,
and its output, from which the rest of the block goes on when it is computed again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from contextlab.attention.seam import Attend, seam_again


class _Kept:
    """Attention of one block, computed once."""

    def __init__(self, attend: Attend) -> None:
        self._attend = attend
        self._out_BHTD: Tensor | None = None

    def __call__(
        self, layer: int, q_BHTD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, scale: float, window: int | None
    ) -> Tensor:
        """As `Attend`; the second time the output of the first."""
        if self._out_BHTD is not None:
            # What follows keeps the same tensors as before only where it finds that a gradient is wanted.
            return self._out_BHTD.detach().requires_grad_(self._out_BHTD.requires_grad)
        with saved_tensors_hooks(Tensor.detach, Tensor.detach):
            out_BHTD = self._attend(layer, q_BHTD, k_BKTD, v_BKTD, scale, window)
        # The output itself would keep the graph that it is part of.
        self._out_BHTD = out_BHTD.detach().requires_grad_(out_BHTD.requires_grad)
        return out_BHTD


@contextmanager
def _needed(weights: Sequence[tuple[nn.Parameter, bool]]) -> Iterator[None]:
    """Weights that need gradients or not, as they did when a block was computed first."""
    before = [(weight, weight.requires_grad) for weight, _ in weights]
    try:
        for weight, needed in weights:
            weight.requires_grad_(needed)
        yield
    finally:
        for weight, needed in before:
            weight.requires_grad_(needed)


@contextmanager
def recomputing() -> Iterator[None]:
    """Compute blocks again in backward passes, in this block of code, which forward and backward passes are part of.

    Raises:
        torch.utils.checkpoint.CheckpointError: in a backward pass, where a block computes something else the second
            time, as when hooks have changed its layers.
    """

    def call(block: nn.Module, *args: Any, **kwargs: Any) -> Any:
        attend = kwargs.get("attend")
        if attend is None or not torch.is_grad_enabled():
            return nn.Module.__call__(block, *args, **kwargs)
        kwargs["attend"], again = _Kept(attend), seam_again(block)
        needed = [(weight, weight.requires_grad) for weight in block.parameters()]

        def run(*args: Any, **kwargs: Any) -> Any:
            with again(), _needed(needed):
                return nn.Module.__call__(block, *args, **kwargs)

        return checkpoint(run, *args, use_reentrant=False, **kwargs)

    with mock.patch.object(GradientCheckpointingLayer, "__call__", call):
        yield
