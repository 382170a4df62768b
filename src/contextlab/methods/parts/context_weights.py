"""Methods that keep a text as a change of weights: chunks are read one by one, each with what those before it made.

Legend: B rows, t tokens of a block, T tokens of a pass, C width of the model.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from contextlab import states
from contextlab.attention import CacheReader, Layout
from contextlab.method import C
from contextlab.methods.parts.local_cache import LocalState
from contextlab.methods.parts.segments import SegmentMethod
from contextlab.methods.parts.targets import Enter, Pair, Target, adapted


@dataclasses.dataclass(frozen=True)
class WeightsState(LocalState):
    """The context as weights, and the cache of the chunk that is being read.

    Attributes:
        pairs: the weight change that the finished chunks make, per adapted layer.
        context_B: tokens of the context that was announced, 0 when none was.
    """

    pairs: tuple[Pair, ...]
    context_B: Tensor


W = TypeVar("W", bound=WeightsState)


class WeightsMethod(SegmentMethod[C, W]):
    """Turns every finished chunk into a change of weights, with which what follows is read from a cold start.

    A context whose length is announced is cut into chunks of equal length. At its end nothing of it is left but the
    weights: a question follows BOS, as without a context.

    Attributes:
        targets: the layers whose weights change.
    """

    targets: list[Target]

    @abstractmethod
    def only_answers(self, state: W) -> W:
        """The state as one whose weights do not change any more, whatever is read."""

    def check_state(self, state: W) -> None:
        """A context was announced with a length."""
        super().check_state(state)
        states.within("context_B", state.context_B, 0, states.MOST)

    def forward(
        self, state: W, tokens_BT: Tensor, layout: Layout, enter: Enter | None = None
    ) -> tuple[Tensor, Sequence[CacheReader]]:
        """`hidden_BTC` of tokens that lie after a state, with the weights of the finished chunks; see `adapted`."""
        reader = CacheReader(self.backbone, state.kv, layout)
        with adapted(self.targets, state.pairs.__getitem__, enter):
            return self.local.hidden(self.backbone, state, tokens_BT, reader), (reader,)

    def generate(
        self, state: W, prompts: Sequence[Sequence[int]], *, max_new_tokens: int, **options: Any
    ) -> list[list[int]]:
        """Continue every row after its prompt, without learning from what no later token will be read with."""
        if max(map(len, prompts), default=0) + max_new_tokens <= int(state.left_B.min()):
            state = self.only_answers(state)
        return super().generate(state, prompts, max_new_tokens=max_new_tokens, **options)

    def placed(self, state: W, ended_B: Tensor, lengths_B: Tensor, hidden_BtC: Tensor) -> tuple[W, Tensor]:
        """The state after a step in which chunks have ended, with the next ones placed, and what predicts its tokens.

        Args:
            state: after the step, with the changes of the chunks, its length not yet brought up to date.
            ended_B: rows whose chunk has ended.
            lengths_B: tokens of the step.
            hidden_BtC: of the step.
        """
        read_B = state.length_B + lengths_B
        left_B = torch.where(ended_B, self.chunk_after(read_B, state.context_B), state.left_B)
        context_ended_B = ended_B & (read_B == state.context_B)
        if bool(context_ended_B.any()):
            # The last hidden state of a block is what predicts the next token: here, that of a question.
            hidden_BtC = hidden_BtC.clone()
            rows, lasts = (x.to(hidden_BtC.device) for x in (context_ended_B.nonzero()[:, 0], lengths_B - 1))
            hidden_BtC[rows, lasts[rows]] = self.after_bos(state.pairs)[rows]
        return dataclasses.replace(state, left_B=left_B), hidden_BtC

    def chunk_after(self, read_B: Tensor, context_B: Tensor) -> Tensor:
        """The length of the chunk after `read_B` tokens: equal parts of an announced context, whole chunks after it.

        (GenerativeAdapter, section 4.1 and released code: n = ceil(M / 1024) chunks of ceil(M / n).)
        """
        count_B = (context_B + self.local.segment - 1) // self.local.segment
        equal_B = (context_B + count_B - 1) // count_B.clamp(min=1)
        rest_B = context_B - read_B
        return torch.where(rest_B > 0, torch.minimum(equal_B, rest_B), self.local.segment)

    def after_bos(self, pairs: tuple[Pair, ...]) -> Tensor:
        """`hidden_BC` after BOS alone, with these weights."""
        bos_B1 = torch.full((len(pairs[0].up), 1), self.backbone.bos, device=self.backbone.device)
        zeros_B1 = torch.zeros_like(bos_B1)
        with adapted(self.targets, pairs.__getitem__):
            return self.backbone.forward(bos_B1, zeros_B1, self.backbone.reader(len(bos_B1), Layout(zeros_B1)))[:, 0]
