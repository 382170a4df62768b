"""What the baselines share: causal attention over a cache that is cut back at the end of every segment.

A token's position is its slot in the cache, so positions never leave the range the model was trained on. Models that
learn their positions cannot move cached states; there positions run on, modulo the model's range (circular positions).

Legend: B rows, t tokens of a block, T tokens that lie side by side, C width of the model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from contextlab import states
from contextlab.attention import KV, CacheReader, Layout
from contextlab.method import Ahead, C, State, Writer
from contextlab.methods.blocks import BlockMethod
from contextlab.methods.branches import Branches


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
        longest = max(map(len, candidates), default=0)
        if longest and self.side_by_side(state, longest):
            return self.branches.score(state, candidates)
        return super().score(state, candidates)

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
            return self.branches.generate(state, prompts, Writer(max_new_tokens, stop, temperature, seed))
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

    @property
    def branches(self) -> Branches[S]:
        """Continuations that lie side by side behind a state's cache."""
        return Branches(self.backbone, self.branch, self.band, self.keep_first)

    def branch(self, state: S, tokens_BT: Tensor, steps_T: Tensor, layout: Layout, *, keep: bool) -> tuple[Tensor, S]:
        """Read tokens that lie side by side; see `Branch`."""
        if keep:
            state = dataclasses.replace(state, kv=state.kv.reserve(len(steps_T), states.MOST))
        reader = self.reader(state, layout)
        hidden_BTC = self.forward(state, tokens_BT, steps_T, reader)
        return hidden_BTC, dataclasses.replace(state, kv=reader.side_by_side()) if keep else state

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
