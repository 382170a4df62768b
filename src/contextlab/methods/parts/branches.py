"""Continuations of one state that lie side by side after its cache, which they share and do not copy.

Legend: B rows, T tokens, N candidates or prompts, M tokens of the longest candidate, P tokens of earlier passes, C
width of the model, V vocabulary.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, Generic, Protocol, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from contextlab.attention import KV, Layout, after
from contextlab.backbone import Backbone
from contextlab.writing import Writer, pad_rows

AT_ONCE = 4096
"""Tokens that lie side by side: more would gain no speed, and their mask grows with the square."""


def at_once(tokens: int) -> int:
    """How many continuations lie side by side, each of so many tokens."""
    return max(1, AT_ONCE // max(tokens, 1))


class Cached(Protocol):
    """A state with a cache."""

    @property
    def kv(self) -> KV:
        """Keys and values of the tokens in view."""

    @property
    def pending_BC(self) -> Tensor:
        """The hidden state that predicts the next token."""


S = TypeVar("S", bound=Cached)


class Branch(Protocol[S]):
    """Reads tokens that lie side by side, each `steps_T` after a state."""

    def __call__(self, state: S, tokens_BT: Tensor, steps_T: Tensor, layout: Layout, *, keep: bool) -> tuple[Tensor, S]:
        """`hidden_BTC`, and with `keep` the state with the tokens after the slots in use, else the state itself."""


class Tail(Generic[S]):
    """The tokens of continuations that have been read, side by side after a state.

    Args:
        branches: how they are read.
        state: that they follow.
        count: how many continuations there are.
    """

    extra: ClassVar[int] = 0
    """Tokens that a continuation has in the tail, at most, beside those that are read."""

    def __init__(self, branches: Branches[S], state: S, count: int) -> None:
        self.branches, self.state, self.count = branches, state, count
        self.used_B = state.kv.used_B
        self.steps_P = self.group_P = torch.zeros(0, dtype=torch.int64, device=state.pending_BC.device)

    def read(self, tokens_BT: Tensor, group_T: Tensor, steps_T: Tensor, *, keep: bool) -> Tensor:
        """`hidden_BTC` of further tokens.

        Args:
            tokens_BT: the tokens.
            group_T: the continuation that each belongs to; those of one lie in their order.
            steps_T: how many tokens of its continuation are before it.
            keep: whether later tokens follow.
        """
        branches, used_B = self.branches, self.used_B
        tail = (after(used_B, self.steps_P), self.group_P) if len(self.steps_P) else ()
        layout = Layout(after(used_B, steps_T), group_T, branches.band, branches.first, *tail)
        hidden_BTC, self.state = branches.branch(self.state, tokens_BT, steps_T, layout, keep=keep)
        if keep:
            self.steps_P, self.group_P = torch.cat((self.steps_P, steps_T)), torch.cat((self.group_P, group_T))
        return hidden_BTC


@dataclasses.dataclass(frozen=True)
class Branches(Generic[S]):
    """Scoring and writing of many continuations of one state in common passes.

    Attributes:
        backbone: for the vocabulary.
        branch: the method's forward pass.
        band: how many tokens a query attends to, itself and those just before it; None for all.
        first: slots at the beginning that every query sees whatever the band.
        tail: how the tokens of continuations are read.
    """

    backbone: Backbone
    branch: Branch[S]
    band: int | None = None
    first: int = 0
    tail: type[Tail[S]] = Tail

    def score(self, state: S, candidates: Sequence[Sequence[int]]) -> Tensor:
        """`logprobs_BNM` of candidates, 0 after their ends."""
        return self.score_rows(state, [candidates] * len(state.pending_BC))

    def score_rows(self, state: S, candidates: Sequence[Sequence[Sequence[int]]]) -> Tensor:
        """`logprobs_BNM` of every row's own candidates, 0 after their ends and where a row has fewer of them."""
        tokens_BNM, lengths_BN = pad_rows(candidates, state.pending_BC.device)
        _, count, longest = tokens_BNM.shape
        if longest == 0:
            return tokens_BNM.float()
        if count > (together := at_once(longest + self.tail.extra)):
            cuts = ([row[n : n + together] for row in candidates] for n in range(0, count, together))
            parts = [self.score_rows(state, cut) for cut in cuts]
            return torch.cat([functional.pad(part, (0, longest - part.shape[-1])) for part in parts], dim=1)
        group_T = torch.arange(count, device=tokens_BNM.device).repeat_interleave(longest)
        steps_T = torch.arange(longest, device=tokens_BNM.device).repeat(count)
        tokens_BT = tokens_BNM.flatten(1)
        hidden_BTC = self.tail(self, state, count).read(tokens_BT, group_T, steps_T, keep=False)
        hidden_BNMC = hidden_BTC.unflatten(1, (count, longest))
        before_BN1C = state.pending_BC[:, None, None].expand(-1, count, 1, -1)
        previous_BNMC = torch.cat((before_BN1C, hidden_BNMC[:, :, :-1]), dim=2)
        logprobs_BT = self.backbone.logprobs(previous_BNMC.flatten(1, 2), tokens_BT)
        logprobs_BNM = logprobs_BT.unflatten(1, (count, longest))
        after_BNM = steps_T[:longest] >= lengths_BN.to(steps_T.device)[..., None]
        scores_BNM: Tensor = logprobs_BNM.masked_fill(after_BNM, 0.0)
        return scores_BNM

    def generate(self, state: S, prompts: Sequence[Sequence[int]], writer: Writer) -> list[list[int]]:
        """Continue every prompt after the state's only row."""
        longest = max(map(len, prompts)) + writer.max_new_tokens - 1
        together = at_once(longest + self.tail.extra)
        parts = [prompts[n : n + together] for n in range(0, len(prompts), together)]
        return [row for part in parts for row in writer.write(len(part), _Growing(self, state, part))]


class _Growing(Generic[S]):
    """Prompts and what is written after them, one more token of each with every call."""

    def __init__(self, branches: Branches[S], state: S, prompts: Sequence[Sequence[int]]) -> None:
        self.backbone, self.prompts = branches.backbone, prompts
        self.tail, self.device = branches.tail(branches, state, len(prompts)), state.pending_BC.device
        self.hidden_NC = state.pending_BC.expand(len(prompts), -1)
        self.length_N = torch.tensor([len(prompt) for prompt in prompts], device=self.device)

    def __call__(self, chosen_N: Tensor | None) -> Tensor:
        """`logprobs_NV` after the prompts, then after one more token of each."""
        device = self.device
        everyone_N = torch.arange(len(self.prompts), device=device)
        if chosen_N is None:
            tokens_T = torch.tensor([token for prompt in self.prompts for token in prompt], device=device).long()
            group_T = everyone_N.repeat_interleave(self.length_N)
            start_N = self.length_N.cumsum(0) - self.length_N
            steps_T = torch.arange(len(tokens_T), device=device) - start_N[group_T]
        else:
            tokens_T, group_T, steps_T = chosen_N.to(device), everyone_N, self.length_N
            self.length_N = self.length_N + 1
        if len(tokens_T):
            hidden_1TC = self.tail.read(tokens_T[None], group_T, steps_T, keep=True)
            ends_T = torch.cat((group_T[1:] != group_T[:-1], group_T.new_ones(1, dtype=torch.bool)))
            self.hidden_NC = self.hidden_NC.index_copy(0, group_T[ends_T], hidden_1TC[0][ends_T])
        return self.backbone.logprobs_of_all(self.hidden_NC)
