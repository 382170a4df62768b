"""Least squares' cost by arithmetic: chunks with thin products beside some layers, and a regression per layer."""

from __future__ import annotations

from contextlab.accounting.formulas import COUNT, Model
from contextlab.formula import Formula, Row, total
from contextlab.method import Lengths
from contextlab.methods.least_squares.fit import LeastSquaresFit
from contextlab.methods.least_squares.regression import fit_flops, shorten_flops, strongest_flops
from contextlab.methods.parts.formulas import WeightsFormula


class LeastSquaresFormula(WeightsFormula):
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
        self.plain, self.fit = plain, fit
        self.rank, self.seen = widths
        super().__init__(model, chunk, sum(self.rank * (t.inputs + t.outputs) for t in fit.targets), ahead)

    def state_bytes(self, length: int) -> int | None:
        """Bytes of changes, directions, tokens, the open chunk's cache, the last hidden state, and three counts."""
        directions = self.seen * sum(target.inputs for target in self.fit.targets)
        return self.bytes_of(directions, length) + self.segments.length * COUNT

    def written(self, chunk: int) -> int:
        """FLOPs of writing a chunk of so many tokens into weights."""
        fit, studied = self.fit, self.fit.studied
        texts, longest = 1 + len(studied), max([chunk, *studied])
        flops = [self.plain.read([Row(0, chunk)], logprobs=False)]
        if studied:
            prompts = [len(prompt) for prompt in fit.prompts]
            flops.append(self.plain.generate(chunk, prompts, [fit.written] * len(prompts), fit.written))
        rows = chunk - 1 + sum(studied) - len(studied)
        if rows:
            flops.append(texts * self.model.blocks(longest, self.model.pairs(chunk, longest)))
            flops.append(texts * self.network(0, longest))
            flops.append(sum(self._regression(target.inputs, target.outputs, rows) for target in fit.targets))
            thin = sum(min(rows, target.inputs) * (target.inputs + target.outputs) for target in fit.targets)
            flops.append(2 * texts * longest * thin)
        return total(flops) or 0

    def _regression(self, inputs: int, outputs: int, rows: int) -> int:
        flops, terms = fit_flops(rows, inputs, outputs, self.seen), min(rows, inputs)
        flops += shorten_flops(self.rank + terms, inputs, outputs, self.rank)
        return flops + (strongest_flops(self.seen + terms, inputs, self.seen) if self.seen else 0)
