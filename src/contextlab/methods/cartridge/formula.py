"""A cartridge's cost by arithmetic: windows after a cache, and once its training."""

from __future__ import annotations

from collections.abc import Sequence

from contextlab.accounting.formulas import COUNT, Model
from contextlab.formula import Formula, Row, total
from contextlab.methods.cartridge.fit import CartridgeFit, batches, bounds
from contextlab.methods.parts.formulas import LocalFormula, Span
from contextlab.methods.parts.local_cache import LocalCache


class CartridgeFormula(LocalFormula):
    """Forward passes; at the end of the context the training, and what follows BOS.

    Args:
        model: sizes of the backbone.
        plain: of the backbone's own reading and writing.
        local: how long segments are, and the cartridge.
        first: tokens of the first segment.
        context: tokens of the context, 0 without one.
        fit: that trains.
    """

    def __init__(
        self, model: Model, plain: Formula, local: LocalCache, first: int, context: int, fit: CartridgeFit
    ) -> None:
        super().__init__(model, local, first)
        self.plain, self.context, self.fit = plain, context, fit

    def step(self, spans: Sequence[Span], tokens: int) -> int:
        """FLOPs of the forward pass, and of the training where the context ends."""
        ends = sum(span.ended and span.end == self.context for span in spans)
        return super().step(spans, tokens) + (ends * self.trained(self.context) if ends else 0)

    def state_bytes(self, length: int) -> int:
        """Bytes of the cartridge and the window, of the tokens of a context that has not ended, and of its length."""
        tokens = length if length < self.context else 0
        return super().state_bytes(length) + (tokens + 1) * COUNT

    def trained(self, context: int) -> int:
        """FLOPs of the cartridge of a context of so many tokens, and of what follows BOS after it."""
        model, config = self.model, self.fit.config
        p = min(context, self.fit.sizes.p)
        flops = model.blocks(p, model.pairs(0, p)) + model.blocks(1, model.pairs(p, 1))
        if not config.lr or p == context:
            return flops
        written, lengths = self._lessons(context)
        for chosen in batches(len(lengths), config):
            of_batch = [lengths[number] for number in chosen]
            flops += self._update(p, len(chosen), max(of_batch), sum(of_batch))
        return flops + written

    def _lessons(self, context: int) -> tuple[int, list[int]]:
        """FLOPs of making the texts, and how many tokens of each are predicted."""
        config, sizes = self.fit.config, self.fit.sizes
        chunks = [end - begin for begin, end in bounds(context, sizes.chunk)]
        if config.objective == "lm":
            # The last chunk has no token after it.
            lengths = [*chunks[:-1], chunks[-1] - 1]
            return 0, [length for length in lengths if length]
        study, length = config.study, sizes.studied - 1
        flops: list[int | None] = []
        for chunk in chunks:
            flops.append(self.plain.read([Row(0, chunk)], logprobs=False))
            flops.append(self.plain.generate(chunk, [0] * study, [sizes.studied] * study, sizes.studied))
            flops.append(study * self.model.blocks(length, self.model.pairs(chunk, length)))
            flops.append(self.model.head(study * length))
        return total(flops) or 0, [length] * (study * len(chunks))

    def _update(self, p: int, texts: int, longest: int, positions: int) -> int:
        """FLOPs of a pass over padded texts after the cartridge, and of its way back to keys and values."""
        model, tokens = self.model, texts * longest
        pairs = texts * model.pairs(p, longest)
        passes = model.blocks(tokens, pairs) + model.backward(tokens, pairs) - model.projections(tokens)
        # Whole distributions are computed a second time on the way back.
        return passes + (2 if self.fit.config.objective == "lm" else 3) * model.head(positions)
