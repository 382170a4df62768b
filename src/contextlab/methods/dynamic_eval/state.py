"""The state of dynamic evaluation, and how its rows come apart and together again.

Rows run one at a time, each with its own weights. Legend: B rows, N tokens of a context, t tokens of a block, K
key/value heads, S slots, D head width, C width of the model; 1 stands for a single row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from contextlab import states
from contextlab.attention import KV
from contextlab.methods.parts.local_cache import LocalState


@dataclasses.dataclass(frozen=True)
class Learned:
    """Weights and moments, rows first; no moments for rules without them."""

    weights: tuple[Tensor, ...]
    m: tuple[Tensor, ...]
    v: tuple[Tensor, ...]

    def copy(self) -> Learned:
        """A copy of the values in new memory."""
        return Learned(*(tuple(x.clone() for x in part) for part in (self.weights, self.m, self.v)))


@dataclasses.dataclass(frozen=True)
class DynamicEvalState(LocalState):
    """The current context's cache and tokens, and what has been learned from the text so far.

    Attributes:
        tokens_BN: tokens of the context, as many as the cache has slots in use.
        fill_B: how many of them have not been learned from.
        learned: weights and moments of every row.
        steps_B: updates so far.
        loss_B: sum of the segments' mean losses so far, in nats.
    """

    tokens_BN: Tensor
    fill_B: Tensor
    learned: Learned
    steps_B: Tensor
    loss_B: Tensor


def advanced(state: DynamicEvalState, tokens_1t: Tensor, pending_1C: Tensor, kv: KV) -> DynamicEvalState:
    """The state after a block, still to be learned from."""
    count, used = tokens_1t.shape[1], int(state.kv.used_B)
    tokens_1N = state.tokens_BN.clone()
    tokens_1N[:, used : used + count] = tokens_1t
    return dataclasses.replace(
        state,
        length_B=state.length_B + count,
        pending_BC=pending_1C.detach(),
        kv=kv.replace(tuple(k.detach() for k in kv.k), tuple(v.detach() for v in kv.v), kv.used_B),
        left_B=state.left_B - count,
        tokens_BN=tokens_1N,
        fill_B=state.fill_B + count,
    )


def lost(state: DynamicEvalState, count: int) -> DynamicEvalState:
    """The state of a row that has diverged in a call of so many tokens: it predicts nothing any more."""
    pending_1C = torch.full_like(state.pending_BC, float("nan"))
    return dataclasses.replace(state, length_B=state.length_B + count, pending_BC=pending_1C)


def joined(
    state: DynamicEvalState, before: Sequence[DynamicEvalState], after: Sequence[DynamicEvalState]
) -> DynamicEvalState:
    """The rows as one state; weights that no row has changed stay shared."""
    if all(new.learned is old.learned for new, old in zip(after, before, strict=True)):
        nothing = Learned((), (), ())
        rows = states.joined([dataclasses.replace(row, learned=nothing) for row in after])
        return dataclasses.replace(rows, learned=state.learned)
    return after[0] if len(after) == 1 else states.joined(after)
