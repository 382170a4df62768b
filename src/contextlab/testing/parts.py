"""Parts of laws: generated texts, comparisons, and the exception for a broken law.

Legend: B rows, T tokens.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from contextlab.method import AnyMethod, ContextMethod, S, State

TOLERANCE = 1e-4
LENGTH = 300
SHORT = 140  # after the first boundary of segments in small models, and short enough for all splits


class Broken(Exception):
    """A law does not hold; the message describes the failure."""


def usable(method: AnyMethod) -> int:
    """Number of tokens that texts are drawn from: all but the last, which is BOS."""
    return method.backbone.vocab_size - 1


def texts(count: int, seed: int = 0) -> Tensor:
    """`tokens_BT`: random texts of `LENGTH` tokens, the same for the same seed."""
    return torch.randint(0, 256, (count, LENGTH), generator=torch.Generator().manual_seed(seed))


def texts_for(method: AnyMethod, count: int, seed: int = 0) -> Tensor:
    """`texts` where the method computes."""
    return texts(count, seed).to(method.backbone.device)


def read(method: ContextMethod[Any, S], text: Tensor, state: S | None = None) -> tuple[S, Tensor]:
    """`method.read` from a state, by default an empty one, with log-probabilities."""
    after, logprobs = method.read(state if state is not None else method.start(len(text)), text)
    assert logprobs is not None
    return after, logprobs


def same(a: Tensor, b: Tensor, broken: str, tolerance: float = TOLERANCE) -> None:
    """Raise `Broken` for numbers that are not finite or differ by more than the tolerance."""
    if (a.numel() and (gap := float((a.double() - b.double()).abs().max())) > tolerance) or bool(a.isnan().any()):
        raise Broken(f"{broken} (by {gap:.2g})")


def unchanged(state: State, before: dict[str, Tensor]) -> None:
    """Raise `Broken` for a state that is not bitwise the same as before."""
    for name, tensor in state.tensors().items():
        if not torch.equal(tensor, before[name]):
            raise Broken(f"{name} of the state was changed")
