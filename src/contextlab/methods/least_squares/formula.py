"""Least squares' cost by arithmetic: chunks with thin products beside some layers, and a regression per layer."""

from __future__ import annotations

from collections.abc import Sequence

from contextlab.accounting.formulas import COUNT, Model
from contextlab.formula import Formula, Row, total
from contextlab.method import Lengths
from contextlab.methods.formulas import BlockFormula, Segments, Span
from contextlab.methods.least_squares.fit import LeastSquaresFit
from contextlab.methods.least_squares.regression import fit_flops, shorten_flops, strongest_flops

WIDE = 4
"""Bytes of a number of the changes, at least."""


class LeastSquaresFormula(BlockFormula):
    """Forward passes with the changes; at a chunk's end self-study, two passes over its texts, and the regressions.

    Args:
        model: sizes of the backbone.
        plain: of the backbone's own reading and writing.
        chunk: the most tokens of a chunk.
        fit: what writes a chunk into weights.
        widths: rank of a change, and directions of earlier inputs.
        ahead: of the text's start.
    """

    def __init__(
        self,
        model: Model,
        plain: Formula,
        chunk: int,
        fit: LeastSquaresFit,
        widths: tuple[int, int],
        ahead: Lengths | None,
    ) -> None:
        self.context = ahead.context if ahead else 0
        count = -(-self.context // chunk)
        super().__init__(model, Segments(self.context, -(-self.context // max(count, 1)), chunk))
        self.plain, self.chunk, self.fit = plain, chunk, fit
        self.rank, self.seen = widths
        self.pairs = sum(self.rank * (target.inputs + target.outputs) for target in fit.targets)

    def step(self, spans: Sequence[Span], tokens: int) -> int:
        """Forward passes; at a chunk's end its fit, and at the context's what follows BOS."""
        flops = sum(self._network(span.before - span.begin, tokens) for span in spans)
        ended = [span for span in spans if span.ended]
        if any(span.end == self.context for span in ended):
            flops += len(spans) * self._network(0, 1)
        return flops + sum(self._fitted(span.end - span.begin) for span in ended)

    def beside(self, before: int, tokens: int) -> int | None:
        """A forward pass that ends no chunk."""
        return self._network(before - self.segments.bounds(before)[0], tokens)

    def generate(self, before: int, prompts: Sequence[int], written: Sequence[int], most: int) -> int | None:
        """As common passes also for one prompt: what is written ends no chunk where it fits after the state."""
        if not prompts or max(prompts) + most > self._room(before):
            return super().generate(before, prompts, written, most)
        return self._in_common(before, prompts, written, most)

    def state_bytes(self, length: int) -> int | None:
        """Bytes of changes, directions, tokens, the open chunk's cache, the last hidden state, and three counts."""
        wide = max(WIDE, self.model.item_bytes)
        numbers = self.pairs + self.seen * sum(target.inputs for target in self.fit.targets)
        cache = self.model.cache_bytes(length - self.segments.bounds(length)[0])
        return numbers * wide + (self.chunk + 3) * COUNT + cache + self.model.hidden_bytes

    def _network(self, used: int, tokens: int) -> int:
        return self.model.blocks(tokens, self.model.pairs(used, tokens)) + 2 * tokens * self.pairs

    def _fitted(self, chunk: int) -> int:
        """FLOPs of writing a chunk of so many tokens into weights."""
        study, studied = self.fit.config.study, self.fit.studied
        texts, longest = 1 + study, max(chunk, studied)
        flops = [self.plain.read([Row(0, chunk)], logprobs=False)]
        if study:
            flops.append(self.plain.generate(chunk, [0] * study, [studied] * study, studied))
        rows = chunk - 1 + study * (studied - 1)
        if rows:
            flops.append(texts * self.model.blocks(longest, self.model.pairs(chunk, longest)))
            flops.append(texts * self._network(0, longest))
            flops.append(sum(self._regression(target.inputs, target.outputs, rows) for target in self.fit.targets))
            widths = sum(target.inputs + target.outputs for target in self.fit.targets)
            flops.append(2 * texts * longest * rows * widths)
        return total(flops) or 0

    def _regression(self, inputs: int, outputs: int, rows: int) -> int:
        flops = fit_flops(rows, inputs, outputs, self.seen)
        flops += shorten_flops(self.rank + rows, inputs, outputs, self.rank)
        return flops + (strongest_flops(self.seen + rows, inputs, self.seen) if self.seen else 0)
