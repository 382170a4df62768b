"""What a press costs by arithmetic."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol

from contextlab.accounting.formulas import COUNT, Model
from contextlab.methods.parts.formulas import LocalFormula, Segments, Span
from contextlab.methods.parts.local_cache import LocalCache
from contextlab.methods.press.choice import PressNeeds


class KeptShare(Protocol):
    """How many tokens a press keeps, and what it needs for that."""

    needs: PressNeeds

    def kept(self, tokens: int) -> int:
        """How many of so many tokens in view stay."""


@dataclasses.dataclass(frozen=True)
class AroundContext(Segments):
    """Segments of which one is read in two parts, where the context ends in it.

    Attributes:
        context: tokens of the context; 0 where its length is not known.
    """

    context: int

    def bounds(self, position: int) -> tuple[int, int]:
        """Begin of the segment in which the token at a position is, and end of its part."""
        begin, end = super().bounds(position)
        return begin, self.context if position < self.context < end else end


class PressFormula(LocalFormula):
    """A local cache of which a press leaves a share, and its products.

    Args:
        model: sizes of the backbone.
        local: how long segments are.
        first: tokens of the first segment.
        press: how much it leaves.
        context: tokens after which it runs; None where it runs at the end of every segment.
    """

    def __init__(self, model: Model, local: LocalCache, first: int, press: KeptShare, context: int | None) -> None:
        super().__init__(model, local, first)
        self.press, self.context = press, context
        if context is not None:
            self.segments = AroundContext(first, first, local.segment, context)

    def kept(self, end: int) -> int:
        """Slots that stay of a text that ends with a segment."""
        slots = 0
        if self.context is None:
            for tokens in self.segments.before(end):
                slots = self.press.kept(slots + tokens)
        return slots

    def used(self, before: int) -> int:
        """Slots in use of the local cache."""
        begin, _ = self.segments.bounds(before)
        if self.context is not None and begin < self.context <= before:
            return self.press.kept(self.context - begin) + before - self.context
        return super().used(before)

    def step(self, spans: Sequence[Span], tokens: int) -> int:
        """FLOPs of the forward pass, and of the queries of the press where it runs."""
        return super().step(spans, tokens) + sum(self._products(span) for span in spans)

    def beside(self, before: int, tokens: int) -> int | None:
        """A forward pass alone: the press does not run inside of it."""
        return self.network(self._span(before, tokens), tokens)

    def state_bytes(self, length: int) -> int:
        """Bytes of the local cache, of the inputs that the press will need, and of three counts."""
        inputs = self.model.layers * self._inputs(length) * self.model.hidden_bytes
        return super().state_bytes(length) + inputs + 3 * COUNT

    def _products(self, span: Span) -> int:
        """FLOPs of the press after a part of a row."""
        runs = span.ended and (self.context is None or span.end == self.context)
        view, queries = self.used(span.before) + span.taken, self.press.needs.queries
        if not runs or not queries or self.press.kept(view) == view:
            return 0
        width = self.model.heads * self.model.head_width
        return self.model.layers * (2 * queries * self.model.width * width + self.model.search(queries, view))

    def _inputs(self, length: int) -> int:
        """Tokens whose inputs are kept."""
        begin, end = self.segments.bounds(length)
        if self.context is not None:
            if length >= self.context:
                return 0
            end = self.context
        needed = self.press.needs.inputs
        return length - begin if needed is None else min(max(0, needed - (end - length)), length - begin)
