"""The loop that methods share: read in blocks that end where the method's state has to change.

Legend: B rows, T tokens of a call, t tokens of a block, C width of the model.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from contextlab.method import ContextMethod

BLOCK_TOKENS = 1024


class BlockMethod(ContextMethod):
    """A method that reads in blocks: it says how far each row may go, and takes one step.

    Rows may stand at different places of their segments; a block takes from each row what that row may read next.
    """

    @abstractmethod
    def room(self, state: Any) -> Tensor:
        """`room_B`: how many tokens each row may read in one step, at least 1."""

    @abstractmethod
    def step(self, state: Any, tokens_Bt: Tensor, lengths_B: Tensor) -> tuple[Any, Tensor]:
        """Read at most `room_B` tokens a row.

        Returns:
            The state (without `length_B` and `pending_BC` brought up to date) and `hidden_BtC` after the final norm.
        """

    def skim(self, state: Any, tokens_Bt: Tensor, lengths_B: Tensor) -> Any | None:
        """Read a block that fills every row's room, is not scored and is followed by another: nothing is predicted
        from it, so a method may leave out what only its predictions need.

        Returns:
            The state after it, or None when the whole step is needed.
        """
        return None

    def reserve(self, state: Any, lengths_B: Tensor) -> Any:
        """The state that a call starts from, given how many tokens it reads: with room for them where a state grows,
        so that steps may fill it in place. The caller's state stays as it is.
        """
        return state

    @torch.no_grad()
    def read(
        self, state: Any, tokens_BT: Tensor, lengths_B: Tensor | None = None, *, logprobs: bool = True
    ) -> tuple[Any, Tensor | None]:
        """Consume tokens; see `ContextMethod.read`."""
        rows, length = tokens_BT.shape
        left_B = lengths_B if lengths_B is not None else tokens_BT.new_full((rows,), length)
        found_BT = torch.zeros(rows, length, device=tokens_BT.device) if logprobs else None
        done_B = torch.zeros_like(left_B)
        state = self.reserve(state, left_B)
        while bool((left_B > 0).any()):
            room_B = self.room(state)
            take_B = torch.minimum(left_B, room_B.clamp(max=BLOCK_TOKENS))
            index_Bt, real_Bt = _places(done_B, take_B, length)
            tokens_Bt = tokens_BT.gather(1, index_Bt)
            passing = not logprobs and bool((left_B > take_B).all() and (take_B == room_B).all())
            if passing and (passed := self.skim(state, tokens_Bt, take_B)) is not None:
                state = dataclasses.replace(passed, length_B=passed.length_B + take_B)
                done_B, left_B = done_B + take_B, left_B - take_B
                continue
            before_BC = state.pending_BC
            state, hidden_BtC = self.step(state, tokens_Bt, take_B)
            if found_BT is not None:
                previous_BtC = torch.cat((before_BC[:, None], hidden_BtC[:, :-1]), dim=1)
                found_Bt = self.backbone.logprobs(previous_BtC, tokens_Bt)
                found_BT.scatter_add_(1, index_Bt, found_Bt.masked_fill(~real_Bt, 0.0))
            state = _advance(state, hidden_BtC, take_B)
            done_B, left_B = done_B + take_B, left_B - take_B
        return state, found_BT


def _places(done_B: Tensor, take_B: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Where a block's tokens stand in the call, and which of them are real."""
    steps = torch.arange(int(take_B.max()), device=take_B.device)
    return (done_B[:, None] + steps).clamp(max=length - 1), steps < take_B[:, None]


def _advance(state: Any, hidden_BtC: Tensor, take_B: Tensor) -> Any:
    last_B11 = (take_B - 1).clamp(min=0)[:, None, None].expand(-1, 1, hidden_BtC.shape[-1])
    last_BC = hidden_BtC.gather(1, last_B11)[:, 0]
    pending_BC = torch.where(take_B[:, None] > 0, last_BC, state.pending_BC)
    return dataclasses.replace(state, length_B=state.length_B + take_B, pending_BC=pending_BC)
