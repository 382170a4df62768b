"""The loop that methods share: read in blocks that end where the method's state has to change.

Legend: B rows, T tokens of a call, t tokens of a block, C width of the model.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from contextlab.backbone import Backbone
from contextlab.method import C, ContextMethod, Prediction, S
from contextlab.methods.parts.branches import Branches
from contextlab.writing import Writer

BLOCK_TOKENS = 1024


class BlockMethod(ContextMethod[C, S]):
    """A method that reads in blocks: it says how far each row may go, and takes one step.

    Rows may be at different positions of their segments; a block takes from each row what that row may read next.

    Attributes:
        network: what reads; the backbone, or a model around its weights that computes more.
    """

    head_alone: bool = True
    """Whether the backbone's head makes the method's distribution of its hidden states alone."""

    def __init__(self, backbone: Backbone, config: C | None = None) -> None:
        super().__init__(backbone, config)
        self.network = backbone

    @abstractmethod
    def room(self, state: S) -> Tensor:
        """`room_B`: how many tokens each row may read in one step, at least 1."""

    @abstractmethod
    def step(self, state: S, tokens_Bt: Tensor, lengths_B: Tensor) -> tuple[S, Tensor]:
        """Read at most `room_B` tokens a row.

        Returns:
            The state (without `length_B` and `pending_BC` brought up to date) and `hidden_BtC` after the final norm.
        """

    def head(self, state: S) -> Callable[[Tensor, Tensor], Tensor]:
        """The function `(previous_BtC, tokens_Bt)` to `logprobs_Bt`, in float32 at least.

        It predicts the next step's tokens from the hidden states before them.
        """
        return self.network.logprobs

    def skim(self, state: S, tokens_Bt: Tensor, lengths_B: Tensor) -> S | None:
        """Read a block that fills every row's room, is not scored and is followed by another: nothing is predicted
        from it, so a method may leave out what only its predictions need.

        Returns:
            The state after it, or None when the whole step is needed.
        """
        return None

    def reserve(self, state: S, lengths_B: Tensor) -> S:
        """The state that a step starts from: where states grow, preallocated for what the call still reads.

        A state is a value: what is written in place must not be seen by any other state. Called before every step,
        because a segment's end leaves a cache without free slots; where they are still there, it costs nothing.

        Args:
            state: before the step.
            lengths_B: tokens that the call still reads, those of the step included.
        """
        return state

    def room_beside(self, state: S) -> Tensor:
        """`room_B` of continuations that lie side by side: how many tokens the longest may have."""
        return self.room(state)

    def continuations(self, state: S, longest: int) -> Branches[Any] | None:
        """Common passes over many continuations of a state, none of more than `longest` tokens.

        No continuation of that length goes beyond `room_beside`. None where each is read from a copy of the state.
        """
        return None

    def with_graph(self, state: S) -> S:
        """The state that learning starts from: what an empty state holds of learned weights carries a graph."""
        empty_B = state.length_B == 0
        if self.network is self.backbone or not bool(empty_B.any()):
            return state
        pending_BC = torch.where(empty_B.to(state.device)[:, None], self.network.after_bos(), state.pending_BC)
        return dataclasses.replace(state, pending_BC=pending_BC)

    @torch.no_grad()
    def read(
        self, state: S, tokens_BT: Tensor, lengths_B: Tensor | None = None, *, logprobs: bool = True
    ) -> tuple[S, Tensor | None]:
        """Consume tokens; see `ContextMethod.read`."""
        collected = _Collected(tokens_BT, torch.float32) if logprobs else None
        state = self._consume(state, tokens_BT, lengths_B, collected)
        return state, None if collected is None else collected.logprobs_BT

    def learn(self, state: S, tokens_BT: Tensor, lengths_B: Tensor | None = None) -> tuple[S, Prediction]:
        """Consume tokens with a graph; see `ContextMethod.learn`."""
        if self.learned is None:
            return super().learn(state, tokens_BT, lengths_B)
        with torch.enable_grad(), self.backbone.frozen():
            return self._predicted(self.with_graph(state), tokens_BT, lengths_B)

    def learn_context(self, state: S, tokens_BT: Tensor, lengths_B: Tensor | None = None) -> S:
        """Consume tokens with a graph and without predictions; see `ContextMethod.learn_context`."""
        if self.learned is None:
            return super().learn_context(state, tokens_BT, lengths_B)
        with torch.enable_grad(), self.backbone.frozen():
            return self._consume(self.with_graph(state), tokens_BT, lengths_B, None)

    def memory_alone(self, state: S) -> S:
        """The state itself where segments start cold and every row has ended one; see `ContextMethod.memory_alone`."""
        segment = self.capabilities.segment
        if segment is None or not bool((self.room(state) == segment).all()):
            return super().memory_alone(state)
        return state

    @torch.no_grad()
    def next_logprobs(self, state: S) -> Tensor:
        """Of the network's own head; see `ContextMethod.next_logprobs`."""
        return self.network.logprobs_of_all(state.pending_BC)

    @torch.no_grad()
    def predict(self, state: S, tokens_BT: Tensor, lengths_B: Tensor | None = None) -> tuple[S, Prediction]:
        """Consume tokens as `read` does; what `learn` returns, without a graph, and of every method."""
        return self._predicted(state, tokens_BT, lengths_B)

    def _predicted(self, state: S, tokens_BT: Tensor, lengths_B: Tensor | None) -> tuple[S, Prediction]:
        width = state.pending_BC.shape[-1]
        hidden_BTC = state.pending_BC.new_zeros(*tokens_BT.shape, width) if self.head_alone else None
        dtype = torch.promote_types(torch.float32, state.pending_BC.dtype)
        collected = _Collected(tokens_BT, dtype, hidden_BTC)
        state = self._consume(state, tokens_BT, lengths_B, collected)
        return state, Prediction(collected.logprobs_BT, hidden_BTC)

    @torch.no_grad()
    def score(self, state: S, candidates: Sequence[Sequence[int]]) -> Tensor:
        """Score all candidates in common passes over the shared state where none goes beyond its room."""
        branches = self._branches(state, max(map(len, candidates), default=0))
        return super().score(state, candidates) if branches is None else branches.score(state, candidates)

    @torch.no_grad()
    def score_rows(self, state: S, candidates: Sequence[Sequence[Sequence[int]]]) -> Tensor:
        """Score all rows' candidates as `score` does."""
        branches = self._branches(state, max((len(text) for row in candidates for text in row), default=0))
        if branches is None:
            return super().score_rows(state, candidates)
        return branches.score_rows(state, candidates)

    @torch.no_grad()
    def generate(
        self,
        state: S,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        stop: Sequence[int] = (),
        temperature: float = 0.0,
        seed: int = 0,
    ) -> list[list[int]]:
        """Continue many prompts after one row in common passes over it where none goes beyond its room."""
        longest = max(map(len, prompts), default=0) + max_new_tokens - 1  # the last one is not read
        branches = self._branches(state, longest) if state.batch_size == 1 < len(prompts) else None
        if branches is not None:
            return branches.generate(state, prompts, Writer(max_new_tokens, stop, temperature, seed))
        return super().generate(
            state, prompts, max_new_tokens=max_new_tokens, stop=stop, temperature=temperature, seed=seed
        )

    def _branches(self, state: S, longest: int) -> Branches[Any] | None:
        """Common passes over continuations of that length, where no row has to change its state inside of one."""
        return self.continuations(state, longest) if longest <= int(self.room_beside(state).min()) else None

    def _consume(self, state: S, tokens_BT: Tensor, lengths_B: Tensor | None, collected: _Collected | None) -> S:
        """The state after the tokens; predictions are `collected` where they are wanted."""
        rows, length = tokens_BT.shape
        left_B = torch.full((rows,), length) if lengths_B is None else lengths_B.cpu()
        done_B = torch.zeros_like(left_B)
        while bool((left_B > 0).any()):
            room_B = self.room(state)
            take_B = torch.minimum(left_B, room_B.clamp(max=BLOCK_TOKENS))
            block = BlockTokens(done_B, take_B, tokens_BT)
            passing = collected is None and bool((left_B > take_B).all() and (take_B == room_B).all())
            skimmed = self.skim(state, block.tokens_Bt, take_B) if passing else None
            if skimmed is not None:
                state = dataclasses.replace(skimmed, length_B=skimmed.length_B + take_B)
            else:
                before_BC, head = state.pending_BC, self.head(state)
                state = self.reserve(state, left_B)
                state, hidden_BtC = self.step(state, block.tokens_Bt, take_B)
                if collected is not None:
                    previous_BtC = torch.cat((before_BC[:, None], hidden_BtC[:, :-1]), dim=1)
                    collected.add(head(previous_BtC, block.tokens_Bt), previous_BtC, block)
                pending_BC = block.last(hidden_BtC, state.pending_BC)
                state = dataclasses.replace(state, length_B=state.length_B + take_B, pending_BC=pending_BC)
            done_B, left_B = done_B + take_B, left_B - take_B
        return state


class _Collected:
    """Predictions of blocks, put together to the whole call."""

    def __init__(self, tokens_BT: Tensor, dtype: torch.dtype, hidden_BTC: Tensor | None = None) -> None:
        self.hidden_BTC = hidden_BTC
        self.logprobs_BT = torch.zeros(tokens_BT.shape, dtype=dtype, device=tokens_BT.device)

    def add(self, logprobs_Bt: Tensor, previous_BtC: Tensor, block: BlockTokens) -> None:
        """Add the predictions of a block and the hidden states before its tokens, at their positions in the call."""
        block.put(logprobs_Bt.to(self.logprobs_BT.dtype), self.logprobs_BT)
        if self.hidden_BTC is not None:
            block.put(previous_BtC, self.hidden_BTC)


class BlockTokens:
    """The tokens that a block takes of a call: one stretch of all rows, or as many of each as it may read.

    Args:
        done_B: tokens of the call that were taken before, on the host.
        take_B: tokens that are taken now, on the host.
        tokens_BT: of the call.

    Attributes:
        tokens_Bt: of the block.
    """

    def __init__(self, done_B: Tensor, take_B: Tensor, tokens_BT: Tensor) -> None:
        begin, count = int(done_B[0]), int(take_B.max())
        self.whole = bool((done_B == begin).all() and (take_B == count).all())
        self.stretch = slice(begin, begin + count)
        if self.whole:
            self.tokens_Bt = tokens_BT[:, self.stretch]
            return
        device = tokens_BT.device
        self.take_B = take_B.to(device)
        steps = torch.arange(count, device=device)
        self.index_Bt = (done_B.to(device)[:, None] + steps).clamp(max=tokens_BT.shape[1] - 1)
        self.real_Bt = steps < self.take_B[:, None]
        self.tokens_Bt = tokens_BT.gather(1, self.index_Bt)

    def put(self, x: Tensor, into: Tensor) -> None:
        """Put what `(B, t, ...)` says of the block's tokens into that of the call, `(B, T, ...)`, which is 0 there."""
        if self.whole:
            into[:, self.stretch] = x
            return
        shape = (*self.index_Bt.shape, *[1] * (x.dim() - 2))
        into.scatter_add_(1, self.index_Bt.view(shape).expand_as(x), x.masked_fill(~self.real_Bt.view(shape), 0.0))

    def last(self, x_BtC: Tensor, before_BC: Tensor) -> Tensor:
        """What a row's last token has; what was before where none is taken."""
        if self.whole:
            return x_BtC[:, -1].clone()  # a view would keep all of the block
        last_B11 = (self.take_B - 1).clamp(min=0)[:, None, None].expand(-1, 1, x_BtC.shape[-1])
        return torch.where(self.take_B[:, None] > 0, x_BtC.gather(1, last_B11)[:, 0], before_BC)
