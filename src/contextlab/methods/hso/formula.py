"""HSO's cost by arithmetic: windows read forwards, and once more backwards through their activations.

What is compared with the plain model because a loss looks suspicious depends on the text and is not in it; the first
stretch of a context is compared in any case.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from contextlab.accounting.formulas import COUNT, Model
from contextlab.formula import Formula, Row
from contextlab.methods.hso.config import HSOConfig
from contextlab.methods.hso.reading import JUDGED_TOKENS

STATE_BYTES = 4
"""Bytes of a number of the states, at least, and of a loss."""
FUSED = ("gpt2", "gpt_neox", "phi3")
"""Model types with one layer that makes queries, keys and values."""


@dataclasses.dataclass
class _Open:
    """A row while it is read.

    Attributes:
        used: slots of finished windows.
        open: tokens of the unfinished one.
        windows: that were finished in the context.
        left: tokens to the context's end.
        rest: tokens of the call.
    """

    used: int
    open: int
    windows: int
    left: int
    rest: int

    @property
    def end(self) -> int:
        """Slots in use."""
        return self.used + self.open


@dataclasses.dataclass(frozen=True)
class _Window:
    """Sizes of one pass over all rows.

    Attributes:
        tokens: that are read.
        pairs: of a query and a key, visible.
        past: slots in front of what is read.
        view: slots in view.
    """

    tokens: int
    pairs: int
    past: int
    view: int


class HSOFormula(Formula):
    """Forward and backward passes, window by window.

    Args:
        model: sizes of the backbone.
        config: the method's settings.
        context: the most states in view, but for the open window.
        first: tokens of the first context; None where contexts never end.
    """

    least = True

    def __init__(self, model: Model, config: HSOConfig, context: int, first: int | None) -> None:
        self.model, self.config, self.context, self.first = model, config, context, first
        self.stretch = -(-JUDGED_TOKENS // config.k)

    def read(self, rows: Sequence[Row], *, logprobs: bool) -> int | None:
        """All windows of the call; one that an earlier call has left open is run once more when it can be learned."""
        if not max((row.tokens for row in rows), default=0):
            return 0
        flops = len(rows) * self.model.head(1) if logprobs else 0
        open_rows = [self._held(row) for row in rows]
        for row in [] if logprobs else open_rows:
            self._skip(row)
        while any(row.rest for row in open_rows):
            flops += self._window(open_rows, logprobs)
        return flops

    def predict(self, befores: Sequence[int]) -> int | None:
        """One projection for every row."""
        return self.model.head(len(befores))

    def state_bytes(self, length: int) -> int | None:
        """Bytes of the states in view, of the moments of those that have moved, of their tokens and of the counts."""
        row, model, of_inputs = self._held(Row(length, 0)), self.model, self.config.of_inputs
        number = model.width if of_inputs else model.kv_heads * model.head_width
        wide = max(STATE_BYTES, model.item_bytes)
        moving = model.layers * (2 if self.config.states == "both" else 1)
        moments = 2 * moving * row.used if self.config.keeps_moments else 0
        states = model.layers * (1 if of_inputs else 2) * row.end + moments
        return states * number * wide + row.end * COUNT + model.hidden_bytes + 4 * COUNT + 3 * STATE_BYTES

    def _held(self, row: Row) -> _Open:
        """Bytes that are held when a row has been read so far."""
        if self.first is None:
            begin, left = 0, 1 << 60
        else:
            past = row.before - self.first
            begin = 0 if past < 0 else self.first + past // self.context * self.context
            left = (self.first if past < 0 else begin + self.context) - row.before
        done, k = row.before - begin, self.config.k
        # Without steps no window waits for its last target.
        closed = done // k if not self.config.lr else max(done - 1, 0) // k
        used = closed * k
        return _Open(min(used, self.context) if self.first is None else used, done - used, closed, left, row.tokens)

    def _skip(self, row: _Open) -> None:
        """Leave out contexts that end in the call and of which nothing is wanted."""
        if row.rest > row.left:
            row.rest -= row.left + (row.rest - row.left - 1) // self.context * self.context
            row.used, row.open, row.windows, row.left = 0, 0, 0, self.context

    def _window(self, rows: list[_Open], logprobs: bool) -> int:
        """FLOPs up to the end of every row's window; the rows are moved on."""
        k, lr = self.config.k, self.config.lr
        takes = [min(row.rest, k - row.open, row.left) for row in rows]
        ends = [take == row.left for row, take in zip(rows, takes, strict=True)]
        closing = [
            row.open + take == k and not end and (row.rest > take or lr == 0)
            for row, take, end in zip(rows, takes, ends, strict=True)
        ]
        learns = lr > 0 and any(closing)
        begins = [0 if learns else row.open for row in rows]
        for row, take in zip(rows, takes, strict=True):
            row.open += take
        flops = self._pass(rows, begins, learns=learns, logprobs=logprobs)
        for row, take, end, close in zip(rows, takes, ends, closing, strict=True):
            if learns and close and row.windows + 1 == self.stretch > 1:
                flops += self._judged(row.end)
            row.rest -= take
            row.left = self.context if end else row.left - take
            if end or close:
                row.used, row.open, row.windows = (0, 0, 0) if end else (row.end, 0, row.windows + 1)
            if self.first is None:
                row.used = min(row.used, self.context)
        return flops

    def _pass(self, rows: Sequence[_Open], begins: Sequence[int], *, learns: bool, logprobs: bool) -> int:
        """FLOPs of one pass over all rows, and of the way back where windows are learned from."""
        tokens = max(row.open - begin for row, begin in zip(rows, begins, strict=True))
        last = max(row.end for row in rows)
        pairs = 0
        for row, begin in zip(rows, begins, strict=True):
            real = row.open - begin
            # Padding goes to the last slot, from which all are seen.
            pairs += self.model.pairs(row.used + begin, real) + (tokens - real) * self.model.pairs(last, 1)
        past = max(row.used + begin for row, begin in zip(rows, begins, strict=True))
        count = len(rows) * tokens
        padded = any(row.open - begin < tokens for row, begin in zip(rows, begins, strict=True))
        window = _Window(count, pairs, len(rows) * past, len(rows) * (last + padded))
        forward = self._forward(window) + (self.model.head(count) if learns or logprobs else 0)
        return forward + (self._learned(window) if learns else 0)

    def _forward(self, window: _Window, *, fixed: bool = False) -> int:
        """The blocks, and keys and values of cached inputs."""
        projections = self._projections(window.view if fixed else window.past) if self.config.of_inputs else 0
        return self.model.blocks(window.tokens, window.pairs) + projections

    def _learned(self, window: _Window) -> int:
        """FLOPs of the steps after the forward pass, with the forward pass of the second."""
        once = self._backward(window)
        if self.config.steps == 1:
            return once
        fixed = self.config.second == "fixed"
        again = self._forward(window, fixed=fixed) + self.model.head(window.tokens)
        return once + again + self._backward(window, fixed=fixed)

    def _backward(self, window: _Window, *, fixed: bool = False) -> int:
        """No gradient of a weight, and none below what moves in the first layer."""
        model, config, tokens = self.model, self.config, window.tokens
        flops = model.backward(tokens, window.pairs) + model.head(tokens)
        if config.of_inputs and not fixed:
            return flops + (self._projections(window.past) if config.update == "full" else 0)
        flops -= model.projections(tokens)
        if not config.of_inputs:
            return flops
        # What a fused layer makes is differentiated as a whole.
        unused = (
            0 if model.config.model_type in FUSED else self._projections(tokens) // model.layers * (model.layers - 1)
        )
        return flops + self._projections(window.view) - unused

    def _projections(self, tokens: int) -> int:
        """FLOPs of making keys and values of every layer's inputs."""
        return self.model.layers * 4 * tokens * self.model.width * self.model.kv_heads * self.model.head_width

    def _judged(self, slots: int) -> int:
        """FLOPs of reading all in view by the plain model."""
        judged = min(self.stretch * self.config.k, slots)
        return self.model.blocks(slots, self.model.pairs(0, slots)) + self.model.head(judged)
