"""What laws are made of: generated texts, comparisons, and what is raised when one does not hold.

Legend: B rows, T tokens.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from contextlab.method import AnyMethod

TOLERANCE = 1e-4
LENGTH = 300
SHORT = 140  # just past the first boundary of the small models' segments, short enough to be split everywhere


class Broken(Exception):
    """A law does not hold; the text says what was seen."""


def usable(method: AnyMethod) -> int:
    """Tokens that texts are drawn from: all but the last, which begins every text."""
    return method.backbone.vocab_size - 1


def texts(count: int, seed: int = 0) -> Tensor:
    """`tokens_BT`: random texts of `LENGTH` tokens, the same for a seed."""
    return torch.randint(0, 256, (count, LENGTH), generator=torch.Generator().manual_seed(seed))


def read(method: AnyMethod, text: Tensor, state: Any = None) -> tuple[Any, Tensor]:
    """What `method.read` gives from a state, an empty one when there is none."""
    state, logprobs = method.read(state if state is not None else method.start(len(text)), text)
    assert logprobs is not None
    return state, logprobs


def same(a: Tensor, b: Tensor, broken: str, tolerance: float = TOLERANCE) -> None:
    """Refuse numbers that differ by more than the tolerance, or are none."""
    if (a.numel() and (gap := float((a.double() - b.double()).abs().max())) > tolerance) or bool(a.isnan().any()):
        raise Broken(f"{broken} (by {gap:.2g})")


def unchanged(state: Any, before: dict[str, Tensor]) -> None:
    """Refuse a state that is not bitwise what it was."""
    for name, tensor in state.tensors().items():
        if not torch.equal(tensor, before[name]):
            raise Broken(f"{name} of the state was changed")
