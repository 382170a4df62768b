"""UltraGist's cost by arithmetic: windows that follow gists, and the gists of every window that ends."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from contextlab.accounting.formulas import COUNT, Model
from contextlab.method import Lengths
from contextlab.methods.parts.formulas import BlockFormula, Segments, Span
from contextlab.methods.ultragist.config import Extent


class UltraGistFormula(BlockFormula):
    """Forward passes of the backbone over tokens, and of its update over gists.

    Args:
        model: sizes of the backbone.
        extent: how much is in view.
        ratio: tokens for one gist.
        update: FLOPs per gist of the updates.
        ahead: of the text's start.
    """

    def __init__(self, model: Model, extent: Extent, ratio: int, update: int, ahead: Lengths | None) -> None:
        super().__init__(model, Segments(ahead.context if ahead else 0, extent.window, extent.window))
        self.extent, self.ratio, self.update = extent, ratio, update

    def front(self, begin: int) -> int:
        """Slots in front of a window: sinks, and gists of the windows before."""
        front = 0
        for length in self.segments.before(begin):
            past = front or min(length, self.extent.sinks)
            front = min(past + self._gists(length), self.extent.front)
        return front

    def step(self, spans: Sequence[Span], tokens: int) -> int:
        """Forward passes, and the gists of the windows that end, as many as the longest of them has."""
        ended = [span for span in spans if span.ended]
        gists = max((self._gists(span.end - span.begin) for span in ended), default=0)
        return sum(self._network(span, tokens) for span in spans) + sum(self._compressed(span, gists) for span in ended)

    def beside(self, before: int, tokens: int) -> int | None:
        """A forward pass that ends no window."""
        return self._network(self._span(before, tokens), tokens)

    def state_bytes(self, length: int) -> int | None:
        """Bytes of the cache, the last hidden state, and four counts."""
        begin, _ = self.segments.bounds(length)
        return self.model.cache_bytes(self.front(begin) + length - begin) + self.model.hidden_bytes + 4 * COUNT

    def _gists(self, tokens: int) -> int:
        return -(-tokens // self.ratio)

    def _network(self, span: Span, tokens: int) -> int:
        return self.model.blocks(tokens, self.model.pairs(self.front(span.begin) + span.before - span.begin, tokens))

    def _compressed(self, span: Span, gists: int) -> int:
        """FLOPs of a window's gists: each sees all in front, its share of the tokens, and the gists up to itself."""
        front, tokens, window = self.front(span.begin), span.end - span.begin, self.model.window
        limits = [front + min(number * self.ratio, tokens) for number in range(1, gists + 1)]
        positions = [limit + step for step, limit in enumerate(limits)]
        pairs = 0
        for step, (limit, position) in enumerate(zip(limits, positions, strict=True)):
            oldest = 0 if window is None else max(position - window + 1, 0)
            pairs += max(limit - oldest, 0) + step + 1 - bisect_left(positions, oldest)
        return self.model.blocks(gists, pairs) + gists * self.update
