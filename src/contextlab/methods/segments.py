"""What the baselines share: causal attention over a cache that is cut back at the end of every segment.

A token's position is its slot in the cache, so positions never leave the range the model was trained on. Models that
learn their positions cannot move cached states; there positions run on, modulo the model's range (circular positions).

Legend: B rows, t tokens of a block, N candidates, M tokens of the longest candidate.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from contextlab import states
from contextlab.attention import KV, CacheReader, Layout
from contextlab.method import Ahead, C, State, Writer, pad
from contextlab.methods.blocks import BlockMethod

AT_ONCE = 4096
"""Tokens that lie side by side: more would gain no speed, and their mask grows with the square."""


@dataclasses.dataclass(frozen=True)
class SegmentState(State):
    """A cache and the tokens left until it is cut back.

    Attributes:
        kv: keys and values of the tokens in view.
        left_B: tokens until the end of the segment, per row.
    """

    kv: KV
    left_B: Tensor

    @property
    def cached(self) -> int:
        """Tokens in the cache."""
        return int(self.kv.used_B.sum())


S = TypeVar("S", bound=SegmentState)


def reserved(kv: KV, lengths_B: Tensor, left_B: Tensor) -> KV:
    """A cache with room for the tokens of a call, as far as the segment goes; rows that differ are copied anyway."""
    if not kv.level or not len(lengths_B) or not bool((lengths_B == lengths_B[0]).all()):
        return kv
    return kv.reserve(int(lengths_B[0]), kv.slots + int(left_B.max()))


class CacheMethod(BlockMethod[C, S]):
    """Attention over a cache of which, after every `segment` tokens, the first and last slots are kept."""

    segment: int
    keep_first: int = 0
    keep_last: int = 0
    band: int | None = None

    def empty(self, batch_size: int, ahead: Ahead | None) -> SegmentState:
        """An empty cache; only segments that start cold are worth placing."""
        first = ahead.first_segment(self.segment) if ahead and self.capabilities.segment else self.segment
        zeros_B = torch.zeros(batch_size, dtype=torch.int64, device=self.backbone.device)
        pending_BC = self.backbone.bos_hidden_C.expand(batch_size, -1)
        return SegmentState(zeros_B, pending_BC, self.backbone.empty_kv(batch_size), zeros_B + first)

    def room(self, state: S) -> Tensor:
        """Up to the end of the segment."""
        return state.left_B

    def step(self, state: S, tokens_Bt: Tensor, lengths_B: Tensor) -> tuple[S, Tensor]:
        """Attend to the cache and the new tokens; at a segment's end cut the cache back."""
        steps = torch.arange(tokens_Bt.shape[1], device=tokens_Bt.device)
        state = self.reserve(state, lengths_B)
        reader = self.reader(state, Layout(state.kv.used_B[:, None] + steps, None, self.band, self.keep_first))
        hidden_BtC = self.backbone.forward(tokens_Bt, self._input_positions(state, steps), reader)
        left_B = state.left_B - lengths_B
        kv = self.kept(reader.grown(lengths_B), left_B == 0)
        left_B = torch.where(left_B == 0, self.segment, left_B)
        return dataclasses.replace(state, kv=kv, left_B=left_B), hidden_BtC

    def reserve(self, state: S, lengths_B: Tensor) -> S:
        """Room for the tokens of the call, as far as the segment goes."""
        return dataclasses.replace(state, kv=reserved(state.kv, lengths_B, state.left_B))

    def kept(self, kv: KV, ended_B: Tensor) -> KV:
        """What stays of a cache where a segment has ended."""
        return kv.keep(self.keep_first, self.keep_last, ended_B, self.backbone)

    def skim(self, state: S, tokens_Bt: Tensor, lengths_B: Tensor) -> S | None:
        """A segment of which nothing is kept need not be computed."""
        if self.keep_first or self.keep_last:
            return None
        kv = state.kv.cut(0, torch.ones_like(lengths_B, dtype=torch.bool))
        return dataclasses.replace(state, kv=kv, left_B=torch.full_like(state.left_B, self.segment))

    def reader(self, state: S, layout: Layout) -> CacheReader:
        """The attention of one forward pass."""
        return CacheReader(self.backbone, state.kv, layout)

    @torch.no_grad()
    def score(self, state: S, candidates: Sequence[Sequence[int]]) -> Tensor:
        """Score all candidates in one pass over the shared cache when no segment ends inside one of them."""
        tokens_NM, lengths_N = pad(candidates, state.length_B.device)
        count, longest = tokens_NM.shape
        rows = state.batch_size
        if longest == 0 or not self.side_by_side(state, longest):
            return super().score(state, candidates)
        if count > (together := max(1, AT_ONCE // longest)):
            parts = [self.score(state, candidates[n : n + together]) for n in range(0, count, together)]
            return torch.cat([functional.pad(part, (0, longest - part.shape[-1])) for part in parts], dim=1)
        group_T = torch.arange(count, device=tokens_NM.device).repeat_interleave(longest)
        steps_T = torch.arange(longest, device=tokens_NM.device).repeat(count)
        layout = Layout(state.kv.used_B[:, None] + steps_T, group_T, self.band, self.keep_first)
        tokens_BT = tokens_NM.reshape(1, -1).expand(rows, -1)
        hidden_BTC = self.forward(state, tokens_BT, steps_T, self.reader(state, layout))
        hidden_BNMC = hidden_BTC.view(rows, count, longest, -1)
        before_BN1C = state.pending_BC[:, None, None].expand(-1, count, 1, -1)
        previous_BNMC = torch.cat((before_BN1C, hidden_BNMC[:, :, :-1]), dim=2)
        found_BNM = self.backbone.logprobs(previous_BNMC.flatten(1, 2), tokens_BT).view(rows, count, longest)
        return found_BNM.masked_fill(torch.arange(longest, device=found_BNM.device) >= lengths_N[:, None], 0.0)

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
        """Continue many prompts behind one row over the shared cache when no segment ends inside one of them."""
        longest = max(map(len, prompts), default=0) + max_new_tokens - 1  # the last one is not read
        if state.batch_size == 1 < len(prompts) and self.side_by_side(state, longest):
            writer, together = Writer(max_new_tokens, stop, temperature, seed), max(1, AT_ONCE // max(longest, 1))
            parts = [prompts[n : n + together] for n in range(0, len(prompts), together)]
            return [row for part in parts for row in writer.write(len(part), Continuations(self, state, part))]
        return super().generate(
            state, prompts, max_new_tokens=max_new_tokens, stop=stop, temperature=temperature, seed=seed
        )

    def check_state(self, state: S) -> None:
        """The cache holds what stays of a segment, and of the open one no more than has been read."""
        super().check_state(state)
        most = self.keep_first + self.keep_last + self.segment
        state.kv.check("kv", most)
        states.within("left_B", state.left_B, self.least_left(state), self.segment)
        states.within("left_B", state.left_B, 0, most - state.kv.used_B)

    def least_left(self, state: S) -> Tensor | int:
        """The fewest tokens that may be left of a segment between calls."""
        return 1

    def side_by_side(self, state: S, longest: int) -> bool:
        """Whether candidates of at most `longest` tokens may lie side by side behind the state's cache."""
        return int(state.left_B.min()) >= longest

    def forward(self, state: S, tokens_BT: Tensor, steps_T: Tensor, reader: CacheReader) -> Tensor:
        """`hidden_BTC` of tokens that lie side by side, each `steps_T` behind the state, which stays as it is."""
        return self.backbone.forward(tokens_BT, self._input_positions(state, steps_T), reader)

    def _input_positions(self, state: S, steps: Tensor) -> Tensor:
        """Positions of models that learn them: slots where a segment starts cold, else running on (circular)."""
        base_B = state.length_B if self.keep_last else state.kv.used_B
        return base_B[:, None] + steps


class SegmentMethod(CacheMethod[C, SegmentState]):
    """A method that keeps a cache and nothing else."""

    def start(self, batch_size: int = 1, *, ahead: Ahead | None = None) -> SegmentState:
        """An empty cache."""
        return self.empty(batch_size, ahead)


class Continuations:
    """Continuations of one state that grow side by side behind its cache, which is shared and not copied."""

    def __init__(self, method: CacheMethod[Any, Any], state: SegmentState, prompts: Sequence[Sequence[int]]) -> None:
        self.method, self.state, self.prompts = method, state, prompts
        self.used_B = state.kv.used_B
        self.hidden_NC = state.pending_BC.expand(len(prompts), -1)
        self.steps_P = self.group_P = self.used_B[:0]
        self.length_N = torch.tensor([len(prompt) for prompt in prompts], device=self.used_B.device)

    def __call__(self, chosen_N: Tensor | None) -> Tensor:
        """`logprobs_NV` behind the prompts, then behind one more token of each."""
        device = self.used_B.device
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
            self._read(tokens_T, group_T, steps_T)
        return self.method.backbone.logprobs_of_all(self.hidden_NC)

    def _read(self, tokens_T: Tensor, group_T: Tensor, steps_T: Tensor) -> None:
        method, state = self.method, self.state
        state = dataclasses.replace(state, kv=state.kv.reserve(len(tokens_T), states.MOST))
        tail_1P = (self.used_B[:, None] + self.steps_P, self.group_P)
        layout = Layout(self.used_B[:, None] + steps_T, group_T, method.band, method.keep_first, *tail_1P)
        reader = method.reader(state, layout)
        hidden_TC = method.forward(state, tokens_T[None], steps_T, reader)[0]
        ends_T = torch.cat((group_T[1:] != group_T[:-1], group_T.new_ones(1, dtype=torch.bool)))
        self.hidden_NC = self.hidden_NC.index_copy(0, group_T[ends_T], hidden_TC[ends_T])
        self.state = dataclasses.replace(state, kv=reader.side_by_side())
        self.steps_P, self.group_P = torch.cat((self.steps_P, steps_T)), torch.cat((self.group_P, group_T))
