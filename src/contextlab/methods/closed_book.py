"""Closed book: whatever was read before the question is ignored."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from contextlab.accounting.formulas import COUNT, Model
from contextlab.backbone import Backbone
from contextlab.formula import Formula, Row
from contextlab.method import Capabilities, ContextMethod, Lengths, MethodConfig, State
from contextlab.methods.full import Full


class ClosedBookFormula(Formula):
    """The cost of `full` for a text alone, in every call with predictions.

    Args:
        model: sizes of the backbone.
        full: the formula of full attention.
    """

    def __init__(self, model: Model, full: Formula) -> None:
        self.model, self.full = model, full

    def read(self, rows: Sequence[Row], *, logprobs: bool) -> int | None:
        """Nothing without predictions."""
        return self.full.read([Row(0, row.tokens) for row in rows], logprobs=True) if logprobs else 0

    def score(self, before: int, candidates: Sequence[int]) -> int | None:
        """The candidates after an empty context."""
        return self.full.score(0, candidates)

    def generate(self, before: int, prompts: Sequence[int], written: Sequence[int], most: int) -> int | None:
        """The prompts after an empty context."""
        return self.full.generate(0, prompts, written, most)

    def state_bytes(self, length: int) -> int:
        """A count, and the hidden state after BOS."""
        return self.model.hidden_bytes + COUNT


class ClosedBook(ContextMethod[MethodConfig, State]):
    """Answers every question from an empty context; reading changes nothing but the count of tokens."""

    def __init__(self, backbone: Backbone, config: MethodConfig | None = None) -> None:
        super().__init__(backbone, config)
        self.full = Full(backbone)

    @property
    def capabilities(self) -> Capabilities:
        """Every call starts from an empty context, so a text read in two calls is two texts."""
        return Capabilities(exact_streaming=False, uses_context=False)

    def formula(self, ahead: Lengths | None = None) -> Formula | None:
        """That of full attention without a context."""
        model, full = Model.of(self.backbone), self.full.formula()
        return None if model is None or full is None else ClosedBookFormula(model, full)

    def start(self, batch_size: int = 1, *, ahead: Lengths | None = None) -> State:
        """A state that only counts."""
        zeros_B = torch.zeros(batch_size, dtype=torch.int64)
        return State(zeros_B, self.backbone.bos_hidden_C.expand(batch_size, -1))

    def read(
        self, state: State, tokens_BT: Tensor, lengths_B: Tensor | None = None, *, logprobs: bool = True
    ) -> tuple[State, Tensor | None]:
        """Score the tokens of this call as a separate text; the state only counts them."""
        logprobs_BT = None
        if logprobs:
            _, logprobs_BT = self.full.read(self.full.start(state.batch_size), tokens_BT, lengths_B)
        read_B = lengths_B.cpu() if lengths_B is not None else tokens_BT.shape[1]
        return dataclasses.replace(state, length_B=state.length_B + read_B), logprobs_BT

    def score(self, state: State, candidates: Sequence[Sequence[int]]) -> Tensor:
        """Score the candidates after an empty context."""
        return self.full.score(self.full.start(state.batch_size), candidates)

    def score_rows(self, state: State, candidates: Sequence[Sequence[Sequence[int]]]) -> Tensor:
        """Score every row's candidates after an empty context."""
        return self.full.score_rows(self.full.start(state.batch_size), candidates)

    def generate(self, state: State, prompts: Sequence[Sequence[int]], **options: Any) -> list[list[int]]:
        """Continue the prompts after an empty context."""
        return self.full.generate(self.full.start(state.batch_size), prompts, **options)
