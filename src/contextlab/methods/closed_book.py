"""Closed book: whatever was read before the question is ignored."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from contextlab.backbone import Backbone
from contextlab.method import Ahead, Capabilities, ContextMethod, MethodConfig, State
from contextlab.methods.full import Full


class ClosedBook(ContextMethod[MethodConfig, State]):
    """Answers every question from an empty context; reading changes nothing but the count of tokens."""

    def __init__(self, backbone: Backbone, config: MethodConfig | None = None) -> None:
        super().__init__(backbone, config)
        self.full = Full(backbone)

    @property
    def capabilities(self) -> Capabilities:
        """Every call starts from an empty context, so a text read in two calls is two texts."""
        return Capabilities(exact_streaming=False, uses_context=False)

    def start(self, batch_size: int = 1, *, ahead: Ahead | None = None) -> State:
        """A state that only counts."""
        zeros_B = torch.zeros(batch_size, dtype=torch.int64, device=self.backbone.device)
        return State(zeros_B, self.backbone.bos_hidden_C.expand(batch_size, -1))

    def read(
        self, state: State, tokens_BT: Tensor, lengths_B: Tensor | None = None, *, logprobs: bool = True
    ) -> tuple[State, Tensor | None]:
        """Score the tokens of this call as a text of their own; the state only counts them."""
        logprobs_BT = None
        if logprobs:
            _, logprobs_BT = self.full.read(self.full.start(state.batch_size), tokens_BT, lengths_B)
        read_B = lengths_B if lengths_B is not None else tokens_BT.shape[1]
        return dataclasses.replace(state, length_B=state.length_B + read_B), logprobs_BT

    def score(self, state: State, candidates: Sequence[Sequence[int]]) -> Tensor:
        """Score the candidates after an empty context."""
        return self.full.score(self.full.start(state.batch_size), candidates)

    def generate(self, state: State, prompts: Sequence[Sequence[int]], **options: Any) -> list[list[int]]:
        """Continue the prompts after an empty context."""
        return self.full.generate(self.full.start(state.batch_size), prompts, **options)
