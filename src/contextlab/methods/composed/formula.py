"""The cost of two methods at once, by arithmetic."""

from __future__ import annotations

from collections.abc import Sequence

from contextlab.accounting.formulas import COUNT
from contextlab.formula import Formula, Row, total
from contextlab.methods.parts.formulas import LocalFormula, WeightsFormula


class ComposedFormula(Formula):
    """Both methods' passes; those of the cache have the products of the weights' changes beside them.

    Args:
        cache: of the method that reads, to which these products are added.
        weights: of the method that makes the weights.
    """

    def __init__(self, cache: LocalFormula, weights: WeightsFormula) -> None:
        cache.update += 2 * weights.pairs
        self.cache, self.weights = cache, weights

    def read(self, rows: Sequence[Row], *, logprobs: bool) -> int | None:
        """Both, up to every change of weights."""
        flops, open_rows = list[int | None](), list(rows)
        while any(row.tokens for row in open_rows):
            steps = [Row(row.before, min(row.tokens, self._room(row.before))) for row in open_rows]
            flops += [self.cache.read(steps, logprobs=logprobs), self.weights.read(steps, logprobs=False)]
            pairs = zip(open_rows, steps, strict=True)
            open_rows = [Row(row.before + part.tokens, row.tokens - part.tokens) for row, part in pairs]
        return total(flops)

    def score(self, before: int, candidates: Sequence[int]) -> int | None:
        """The cache alone where no weights change."""
        if max(candidates, default=0) > self._room(before):
            return super().score(before, candidates)
        return self.cache.score(before, candidates)

    def generate(self, before: int, prompts: Sequence[int], written: Sequence[int], most: int) -> int | None:
        """The cache alone where no weights change."""
        if max(prompts, default=0) + most - 1 > self._room(before):
            return super().generate(before, prompts, written, most)
        return self.cache.generate(before, prompts, written, most)

    def predict(self, befores: Sequence[int]) -> int | None:
        """One projection onto the vocabulary for every row."""
        return self.cache.predict(befores)

    def state_bytes(self, length: int) -> int | None:
        """Bytes of both states, and of the last hidden state and a count."""
        own = self.cache.model.hidden_bytes + COUNT
        return total([self.cache.state_bytes(length), self.weights.state_bytes(length), own])

    def _room(self, before: int) -> int:
        """Tokens to the next change of weights."""
        return self.weights.segments.bounds(before)[1] - before
