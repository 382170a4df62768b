"""Fine-tuning as a state machine: tokens are kept until the context ends, then the weights learn them.

At the end of an announced context nothing of it is left but the weights: a question follows BOS, as without a context.
What is read before that end is predicted with the trained weights.

Rows differ in their weights and run one at a time. Legend: B rows, N tokens of a context, T tokens of a call, M tokens
of a candidate; 1 stands for a single row.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from contextlab.backbone import Backbone, UpdatedBackbone, linear_layers
from contextlab.errors import UserError
from contextlab.method import Capabilities, ContextMethod, Lengths
from contextlab.methods.finetune.blocks import answers, blocks_of
from contextlab.methods.finetune.config import FinetuneConfig
from contextlab.methods.finetune.fit import Fit
from contextlab.methods.finetune.state import FinetuneState, joined
from contextlab.methods.parts.adaptable import Adaptable
from contextlab.methods.window import Window, WindowConfig

R = TypeVar("R")

UPDATES = "*.lora_[AB].*"
"""Names of the matrices of low-rank updates."""


class Finetune(ContextMethod[FinetuneConfig, FinetuneState]):
    """Learns a context for some epochs when it ends, and answers from a cold start with the weights of that context."""

    Config = FinetuneConfig

    def __init__(self, backbone: Backbone, config: FinetuneConfig | None = None) -> None:
        super().__init__(backbone, config)
        self.network, self.model = self._learner()
        self.view = Window(self.network, WindowConfig(N=self.config.length(backbone.max_positions)))
        self.block = self.config.block_length(backbone.max_positions)
        self.fit = Fit(self.network, self.model, self.config)

    @property
    def capabilities(self) -> Capabilities:
        """Differentiates at the end of a context; windows start cold."""
        return Capabilities(needs_gradients=True, segment=self.view.local.segment)

    def baseline(self) -> Window | None:
        """The window, where no context is announced."""
        if self.config.context is not None:
            return None
        return Window(self.backbone, WindowConfig(N=self.view.local.segment))

    def start(self, batch_size: int = 1, *, ahead: Lengths | None = None) -> FinetuneState:
        """The trained weights, shared until a context ends, and an empty window."""
        empty = self.view.local.empty(self.network, batch_size)
        context = ahead.context if ahead else self.config.context or 0
        return FinetuneState(
            empty.length_B,
            empty.pending_BC,
            empty.kv,
            empty.left_B,
            tokens_BN=torch.zeros(batch_size, 0, dtype=torch.int64, device=self.backbone.device),
            context_B=torch.full_like(empty.length_B, context),
            weights=tuple(w.expand(batch_size, *w.shape) for w in self.model.trained),
        )

    def check_state(self, state: FinetuneState) -> None:
        """All tokens of a context are there until it ends."""
        super().check_state(state)
        self.view.local.check(state)
        state.check_context(self.backbone.vocab_size)

    @torch.no_grad()
    def read(
        self, state: FinetuneState, tokens_BT: Tensor, lengths_B: Tensor | None = None, *, logprobs: bool = True
    ) -> tuple[FinetuneState, Tensor | None]:
        """Consume tokens; see `ContextMethod.read`.

        Raises:
            UserError: when learning a context diverges, or there is no answer in it that could be learned.
        """
        rows, length = tokens_BT.shape
        lengths = [length] * rows if lengths_B is None else lengths_B.tolist()
        logprobs_BT = torch.zeros(rows, length, device=tokens_BT.device) if logprobs else None
        before = [state.row(row) for row in range(rows)]
        after = []
        for row, count in enumerate(lengths):
            grown, pieces = self._read_row(before[row], tokens_BT[row : row + 1, :count], logprobs)
            after.append(grown)
            if logprobs_BT is not None and count:
                logprobs_BT[row, :count] = torch.cat(pieces, dim=1)[0]
        return joined(state, before, after), logprobs_BT

    @torch.no_grad()
    def score(self, state: FinetuneState, candidates: Sequence[Sequence[int]]) -> Tensor:
        """Score all candidates of a row as its window does, where no context can end inside of one."""
        if bool(state.open_B.any()):
            return super().score(state, candidates)
        rows = [state.row(row) for row in range(state.batch_size)]
        return torch.cat([self._run(row, functools.partial(self.view.score, row.local, candidates)) for row in rows])

    @torch.no_grad()
    def generate(self, state: FinetuneState, prompts: Sequence[Sequence[int]], **options: Any) -> list[list[int]]:
        """Continue prompts after a single row as its window does, where no context can end inside of one."""
        if state.batch_size > 1 or bool(state.open_B.any()):
            return super().generate(state, prompts, **options)
        row = state.row(0)
        return self._run(row, functools.partial(self.view.generate, row.local, prompts, **options))

    @torch.no_grad()
    def next_logprobs(self, state: FinetuneState) -> Tensor:
        """`logprobs_BV`, float32: the distribution of the next token of every row, with the row's weights."""
        rows = [state.row(row) for row in range(state.batch_size)]
        return torch.cat([self._run(r, functools.partial(self.network.logprobs_of_all, r.pending_BC)) for r in rows])

    def _learner(self) -> tuple[Backbone, Adaptable]:
        """The network that reads, and those of its weights that learn."""
        config, backbone = self.config, self.backbone
        if config.what == "full":
            return backbone, Adaptable(backbone, config.parameters)
        layers = [layer for layer in linear_layers(backbone) if layer.of_attention or config.targets == "all"]
        updated = UpdatedBackbone(backbone, layers, config.rank, config.alpha)
        return updated, Adaptable(updated, UPDATES)

    def _run(self, state: FinetuneState, fn: Callable[[], R]) -> R:
        return self.model.run([w[0] for w in state.weights], fn)

    def _read_row(self, state: FinetuneState, tokens_1T: Tensor, logprobs: bool) -> tuple[FinetuneState, list[Tensor]]:
        pieces: list[Tensor] = []
        rest = max(int(state.context_B - state.length_B), 0)
        if rest and tokens_1T.shape[1]:
            tokens_1t, tokens_1T = tokens_1T[:, :rest], tokens_1T[:, rest:]
            context_1N = torch.cat((state.tokens_BN[:, : int(state.length_B)], tokens_1t), dim=1)
            ends = tokens_1t.shape[1] == rest
            # The window is dropped at the end of the context: it is computed only for what it predicts.
            if logprobs or not ends:
                state = self._read_on(state, tokens_1t, logprobs, pieces)
            state = self._learned(state, context_1N) if ends else dataclasses.replace(state, tokens_BN=context_1N)
        if tokens_1T.shape[1]:
            state = self._read_on(state, tokens_1T, logprobs, pieces)
        return state, pieces

    def _read_on(self, state: FinetuneState, tokens_1t: Tensor, logprobs: bool, pieces: list[Tensor]) -> FinetuneState:
        """The state after tokens, with the weights that it has; their log-probabilities are put to the pieces."""
        read = functools.partial(self.view.read, state.local, tokens_1t, logprobs=logprobs)
        local, logprobs_1t = self._run(state, read)
        if logprobs_1t is not None:
            pieces.append(logprobs_1t)
        return state.with_local(local)

    def _learned(self, state: FinetuneState, context_1N: Tensor) -> FinetuneState:
        """The state after a context: its weights, and an empty window after BOS."""
        weights = state.weights
        if self.config.lr and context_1N.shape[1] > 1:
            if torch.is_inference_mode_enabled():
                raise UserError("Fine-tuning needs gradients: read outside of torch.inference_mode.")
            weights = tuple(w[None] for w in self.fit(blocks_of(context_1N, self._scored(context_1N), self.block)))
        pending_C = self.model.run([w[0] for w in weights], self.network.after_bos)
        empty = self.view.local.empty(self.network, 1)
        after = dataclasses.replace(empty, length_B=state.context_B, pending_BC=pending_C[None])
        return dataclasses.replace(state.with_local(after), tokens_BN=context_1N[:, :0], weights=weights)

    def _scored(self, context_1N: Tensor) -> Tensor:
        """`scored_N`: the tokens that are learned."""
        if self.config.form == "sft":
            return answers(self.backbone, context_1N, self.config.answer)
        return torch.ones_like(context_1N[0], dtype=torch.bool)
