"""Dynamic evaluation as a state machine: every row has separate weights, changed after every segment.

The loss of a segment's last token needs the token after it. So a segment is learned from when that token arrives,
before anything of the next segment is computed; the token itself is scored with the weights as they were. No graph is
kept in a state: a segment that a call did not read whole is run once more, from the cache before it.

Rows differ in their weights and run one at a time. Legend: B rows, N tokens of a context, T tokens of a call, t tokens
of a block, s of them with a known next token, M tokens of a candidate, C width of the model.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from contextlab import states, tensors
from contextlab.accounting.formulas import Model
from contextlab.attention import KV, CacheReader, Layout
from contextlab.backbone import Backbone
from contextlab.errors import UserError
from contextlab.formula import Formula
from contextlab.method import Capabilities, ContextMethod, Lengths
from contextlab.methods.dynamic_eval.config import DynamicEvalConfig
from contextlab.methods.dynamic_eval.formula import DynamicEvalFormula
from contextlab.methods.dynamic_eval.state import DynamicEvalState, Learned, advanced, joined, lost
from contextlab.methods.parts.adaptable import Adaptable
from contextlab.methods.parts.formulas import Segments
from contextlab.methods.parts.local_cache import LocalCache
from contextlab.methods.parts.rules import RMS, SGD, Adam, Rule
from contextlab.methods.window import Window, WindowConfig
from contextlab.writing import pad

R = TypeVar("R")

WORSE_NATS = 1.0


class Diverged(UserError):
    """Learning has made a row's predictions worse."""


class DynamicEval(ContextMethod[DynamicEvalConfig, DynamicEvalState]):
    """Reads contexts of N tokens that start cold, with weights that learn from every segment of the text before."""

    Config = DynamicEvalConfig

    def __init__(self, backbone: Backbone, config: DynamicEvalConfig | None = None) -> None:
        super().__init__(backbone, config)
        self.local = LocalCache(self.config.length(backbone.max_positions))
        self.model = Adaptable(backbone, self.config.parameters)
        self.rule = self._rule()

    @property
    def capabilities(self) -> Capabilities:
        """Differentiates while reading; contexts start cold."""
        return Capabilities(needs_gradients=True, segment=self.local.segment)

    def baseline(self) -> Window | None:
        """The window, without learning."""
        return None if self.config.lr else Window(self.backbone, WindowConfig(N=self.local.segment))

    def formula(self, ahead: Lengths | None = None) -> Formula | None:
        """Segments with their updates; None where some parameters only learn, so that gradients end anywhere."""
        model = Model.of(self.backbone)
        if model is None or len(self.model.names) < len(list(self.backbone.model.parameters())):
            return None
        first = self.local.first_segment(ahead)
        copies = 3 if self.rule.moments else 1
        learned = copies * sum(w.numel() * w.element_size() for w in self.model.trained)
        return DynamicEvalFormula(model, self.config, Segments(first, first, self.local.segment), learned)

    def start(self, batch_size: int = 1, *, ahead: Lengths | None = None) -> DynamicEvalState:
        """The trained weights, shared until they change, and an empty context."""
        empty = self.local.empty(self.backbone, batch_size, ahead)
        trained = self.model.trained
        none = [w.new_zeros(()).expand_as(w) for w in trained] if self.rule.moments else []
        weights, zeros = (tuple(w.expand(batch_size, *w.shape) for w in part) for part in (trained, none))
        zeros_B = torch.zeros_like(empty.length_B)
        return DynamicEvalState(
            length_B=empty.length_B,
            pending_BC=empty.pending_BC,
            kv=empty.kv,
            left_B=empty.left_B,
            tokens_BN=torch.zeros(batch_size, self.local.segment, dtype=torch.int64, device=self.backbone.device),
            fill_B=zeros_B,
            learned=Learned(weights, zeros, zeros),
            steps_B=zeros_B,
            loss_B=torch.zeros(batch_size, device=self.backbone.device),
        )

    def check_state(self, state: DynamicEvalState) -> None:
        """A context's last segment may wait to be learned from; squares are not negative."""
        super().check_state(state)
        # A context that has been read to its end waits for the next token where its last segment does.
        self.local.check(state, least_left=(state.fill_B == 0).long())
        states.within("fill_B", state.fill_B, 0, state.kv.used_B.clamp(max=self.config.segment))
        states.within("steps_B", state.steps_B, 0, state.length_B)
        states.within("tokens_BN", state.tokens_BN, 0, self.backbone.vocab_size - 1)
        for name, v in zip(self.model.names, state.learned.v, strict=False):
            states.within(f"the second moment of {name}", v, 0, v.new_tensor(float("inf")))

    @torch.no_grad()
    def read(
        self, state: DynamicEvalState, tokens_BT: Tensor, lengths_B: Tensor | None = None, *, logprobs: bool = True
    ) -> tuple[DynamicEvalState, Tensor | None]:
        """Consume tokens; see `ContextMethod.read`.

        A row whose learning diverges has NaN for log-probabilities in this call and after it: a loss that is not
        finite, or a segment worse by 1 nat per token than with the trained weights. The latter is only looked at in
        segments worse by that than the text's segments before.

        Raises:
            UserError: when every row has diverged.
        """
        if torch.is_inference_mode_enabled():
            raise UserError("Dynamic evaluation needs gradients: read outside of torch.inference_mode.")
        rows, length = tokens_BT.shape
        lengths = [length] * rows if lengths_B is None else lengths_B.tolist()
        logprobs_BT = torch.zeros(rows, length, device=tokens_BT.device) if logprobs else None
        before = [state.row(row) for row in range(rows)]
        after = []
        errors: list[Diverged] = []
        for row, count in enumerate(lengths):
            try:
                grown, pieces = self._read_row(before[row], tokens_BT[row : row + 1, :count], logprobs)
            except Diverged as error:
                errors.append(error)
                grown, pieces = lost(before[row], count), [torch.full((1, count), math.nan, device=tokens_BT.device)]
            after.append(grown)
            if logprobs_BT is not None and count:
                logprobs_BT[row, :count] = torch.cat(pieces, dim=1)[0]
        if errors and len(errors) == rows:
            raise errors[0]
        return joined(state, before, after), logprobs_BT

    @torch.no_grad()
    def score(self, state: DynamicEvalState, candidates: Sequence[Sequence[int]]) -> Tensor:
        """Score all candidates of a row in one pass when none of them is learned from; else one by one."""
        return torch.cat([self._score_row(state.row(row), candidates) for row in range(state.batch_size)])

    @torch.no_grad()
    def next_logprobs(self, state: DynamicEvalState) -> Tensor:
        """`logprobs_BV`, float32: the distribution of the next token of every row, with the row's weights."""
        rows = [state.row(row) for row in range(state.batch_size)]
        return torch.cat([self._run(r, functools.partial(self.backbone.logprobs_of_all, r.pending_BC)) for r in rows])

    def _rule(self) -> Rule:
        config = self.config
        assert config.lr is not None
        assert config.eps is not None
        if config.rule == "adam":
            return Adam(config.lr, config.beta1, config.beta2, config.eps)
        if config.rule == "sgd":
            return SGD(config.lr)
        return RMS(config.lr, config.eps, config.decay, self.model.trained, self._statistics())

    def _statistics(self) -> list[Tensor]:
        path = self.config.statistics
        assert path is not None
        if not path.is_file():
            raise UserError(f"There is no statistics file {path}: make it with gradient_statistics.")
        stored, _ = tensors.read(path, self.backbone.device)
        weights = dict(zip(self.model.names, self.model.trained, strict=True))
        if not all(name in stored and _is_mean_square(stored[name], w) for name, w in weights.items()):
            raise UserError(f"{path} does not fit {self.backbone.name}: make it with gradient_statistics of this one.")
        return [stored[name].to(w.dtype) for name, w in weights.items()]

    def _run(self, state: DynamicEvalState, fn: Callable[[], R]) -> R:
        return self.model.run(_first(state.learned.weights), fn)

    def _room(self, state: DynamicEvalState) -> int:
        """Tokens of a single row to the end of the segment; 0 when it has been read and waits for the next token."""
        return min(int(state.left_B), self.config.segment - int(state.fill_B))

    def _score_row(self, state: DynamicEvalState, candidates: Sequence[Sequence[int]]) -> Tensor:
        tokens_NM, lengths_N = pad(candidates, state.device)
        if tokens_NM.shape[1] <= self._room(state):
            branches = self.local.branches(self.backbone, self._forward)
            return self._run(state, functools.partial(branches.score, state, candidates))
        logprobs_1NM = torch.zeros(1, *tokens_NM.shape, device=tokens_NM.device)
        for row, (tokens_M, length) in enumerate(zip(tokens_NM, lengths_N.tolist(), strict=True)):
            if length:
                logprobs_1NM[0, row, :length] = self._score_one(state, tokens_M[None, :length])
        return logprobs_1NM

    def _score_one(self, state: DynamicEvalState, tokens_1M: Tensor) -> Tensor:
        """The last token is not read: nothing depends on what would be learned from its arrival."""
        state, logprobs_1m = self.read(state, tokens_1M[:, :-1])
        assert logprobs_1m is not None
        return torch.cat((logprobs_1m[0], self.next_logprobs(state)[0, tokens_1M[0, -1:]]))

    def _read_row(
        self, state: DynamicEvalState, tokens_1T: Tensor, logprobs: bool
    ) -> tuple[DynamicEvalState, list[Tensor]]:
        if bool(state.pending_BC.isnan().any()):
            raise Diverged(f"Dynamic evaluation has diverged before: use a smaller lr than {self.config.lr:g}.")
        shared, pieces = state.learned, []
        if logprobs and tokens_1T.shape[1]:
            head = functools.partial(self.backbone.logprobs, state.pending_BC[:, None], tokens_1T[:, :1])
            pieces.append(self._run(state, head))
        while tokens_1T.shape[1]:
            if not self._room(state):
                state = self._learn_late(state, tokens_1T[:, :1], shared)
            room = self._room(state)
            block_1t, next_1s = tokens_1T[:, :room], tokens_1T[:, 1 : room + 1]
            if next_1s.shape[1] == room and not int(state.fill_B):
                state, logprobs_1s = self._learn(state, block_1t, next_1s, shared)
            else:
                wanted_1s = next_1s if logprobs else next_1s[:, :0]
                logprobs_1s, after = self._run(state, functools.partial(self._predict, state, block_1t, wanted_1s))
                state = advanced(state, block_1t, *after)
            pieces.append(logprobs_1s)
            tokens_1T = tokens_1T[:, room:]
        return state, pieces

    def _predict(self, state: DynamicEvalState, tokens_1t: Tensor, next_1s: Tensor) -> tuple[Tensor, tuple[Tensor, KV]]:
        """Log-probabilities of the next tokens; the last hidden state, and the cache."""
        layout = self.local.layout(state, tokens_1t.shape[1])
        hidden_1tC, (reader,) = self._forward(state, tokens_1t, layout)
        logprobs_1s = self.backbone.logprobs(hidden_1tC[:, : next_1s.shape[1]], next_1s)
        return logprobs_1s, (hidden_1tC[:, -1], reader.grown(torch.full_like(state.fill_B, tokens_1t.shape[1])))

    def _forward(self, state: DynamicEvalState, tokens_BT: Tensor, layout: Layout) -> tuple[Tensor, list[CacheReader]]:
        """`hidden_BTC` of tokens that lie after a state, with the weights that the model has now, and the reader."""
        reader = CacheReader(self.backbone, state.kv, layout)
        return self.local.hidden(self.backbone, state, tokens_BT, reader), [reader]

    def _learn_late(self, state: DynamicEvalState, next_11: Tensor, shared: Learned) -> DynamicEvalState:
        """Learn from a segment that an earlier call has read: run it once more, from the cache before it."""
        fill_B, used = state.fill_B, int(state.kv.used_B)
        begin = used - int(fill_B)
        rewound = dataclasses.replace(
            state,
            length_B=state.length_B - fill_B,
            left_B=state.left_B + fill_B,
            fill_B=torch.zeros_like(fill_B),
            kv=state.kv.cut(begin, fill_B > 0),
        )
        tokens_1t = state.tokens_BN[:, begin:used]
        return self._learn(rewound, tokens_1t, torch.cat((tokens_1t[:, 1:], next_11), dim=1), shared)[0]

    def _learn(
        self, state: DynamicEvalState, tokens_1t: Tensor, next_1t: Tensor, shared: Learned
    ) -> tuple[DynamicEvalState, Tensor]:
        """Read a whole segment and update the weights, in place unless they are `shared` with the caller's state."""
        predict = functools.partial(self._predict, state, tokens_1t, next_1t)
        if not self.config.lr:
            logprobs_1t, after = self._run(state, predict)
            return self._closed(advanced(state, tokens_1t, *after)), logprobs_1t
        logprobs_1t, after, gradients = self.model.gradients(_first(state.learned.weights), predict)
        state = advanced(state, tokens_1t, *after)
        self._check(state, next_1t, logprobs_1t)
        learned = shared.copy() if state.learned is shared else state.learned
        steps_B = state.steps_B + 1
        weights, m, v = map(_first, (learned.weights, learned.m, learned.v))
        self.rule.update(weights, gradients, m, v, int(steps_B))
        loss_B = state.loss_B - logprobs_1t.mean()
        return self._closed(dataclasses.replace(state, learned=learned, steps_B=steps_B, loss_B=loss_B)), logprobs_1t

    def _closed(self, state: DynamicEvalState) -> DynamicEvalState:
        """The state after a segment, which may end the context."""
        state = dataclasses.replace(state, fill_B=torch.zeros_like(state.fill_B))
        if not int(state.left_B):
            return dataclasses.replace(
                state, kv=self.backbone.empty_kv(1), left_B=torch.full_like(state.left_B, self.local.segment)
            )
        if self.config.cache == "recomputed" and self.config.lr:
            _, (_, kv) = self._run(state, functools.partial(self._again, state, state.tokens_BN[:, :0]))
            return dataclasses.replace(state, kv=kv)
        return state

    def _again(self, state: DynamicEvalState, next_1s: Tensor) -> tuple[Tensor, tuple[Tensor, KV]]:
        """The context once more, from its start; like `_predict`."""
        cold = dataclasses.replace(state, kv=self.backbone.empty_kv(1))
        return self._predict(cold, state.tokens_BN[:, : int(state.kv.used_B)], next_1s)

    def _check(self, state: DynamicEvalState, next_1t: Tensor, logprobs_1t: Tensor) -> None:
        loss = -float(logprobs_1t.mean())
        worse = not math.isfinite(loss)
        if not worse and int(state.steps_B) and loss > float(state.loss_B) / int(state.steps_B) + WORSE_NATS:
            known_1s = torch.cat((state.tokens_BN[:, 1 : int(state.kv.used_B)], next_1t[:, -1:]), dim=1)
            plain_1s, _ = self.model.run(self.model.trained, functools.partial(self._again, state, known_1s))
            worse = loss > -float(plain_1s[:, -next_1t.shape[1] :].mean()) + WORSE_NATS
        if worse:
            raise Diverged(
                f"Dynamic evaluation diverged after {int(state.steps_B)} updates (loss {loss:.3g} nats per token): "
                f"use a smaller lr than {self.config.lr:g}."
            )


def _is_mean_square(values: Tensor, weight: Tensor) -> bool:
    floats = values.shape == weight.shape and values.is_floating_point()
    return floats and bool((values.to(weight.dtype).isfinite() & (values >= 0)).all())


def _first(tensors: tuple[Tensor, ...]) -> list[Tensor]:
    return [x[0] for x in tensors]
