"""Dynamic evaluation's cost by arithmetic: a backward pass for every segment, which costs two forward ones.

What is compared with the trained weights because a loss looks suspicious depends on the text and is not in it.
"""

from __future__ import annotations

from collections.abc import Sequence

from contextlab.accounting.formulas import COUNT, Model
from contextlab.formula import Formula, Row, total
from contextlab.methods.dynamic_eval.config import DynamicEvalConfig
from contextlab.methods.parts.branches import AT_ONCE
from contextlab.methods.parts.formulas import Segments

LOSS_BYTES = 4


class DynamicEvalFormula(Formula):
    """Rows run one at a time, segment by segment; one that an earlier call has read runs once more to be learned.

    Args:
        model: sizes of the backbone.
        config: the method's settings.
        contexts: of the text.
        learned_bytes: of weights and moments.
    """

    least = True

    def __init__(self, model: Model, config: DynamicEvalConfig, contexts: Segments, learned_bytes: int) -> None:
        self.model, self.config, self.contexts, self.learned_bytes = model, config, contexts, learned_bytes

    def read(self, rows: Sequence[Row], *, logprobs: bool) -> int | None:
        """The rows, one after the other."""
        return sum(self._row(row, logprobs) for row in rows)

    def score(self, before: int, candidates: Sequence[int]) -> int | None:
        """One pass over all candidates where none of them is learned from; else one by one, without the last token."""
        longest = max(candidates, default=0)
        if not longest:
            return 0
        if longest > self._room(before):
            alone = [self._row(Row(before, length - 1), True) + self.model.head(1) for length in candidates if length]
            return sum(alone)
        if len(candidates) > (together := max(1, AT_ONCE // longest)):
            parts = [candidates[n : n + together] for n in range(0, len(candidates), together)]
            return total([self.score(before, part) for part in parts])
        used = before - self._begin(before)
        each = self.model.blocks(longest, self.model.pairs(used, longest)) + self.model.head(longest)
        return len(candidates) * each

    def predict(self, befores: Sequence[int]) -> int | None:
        """One projection for every row."""
        return self.model.head(len(befores))

    def state_bytes(self, length: int) -> int | None:
        """Bytes of weights and moments, of the context's cache and tokens, of the hidden state and of the counts."""
        cache = self.model.cache_bytes(length - self._begin(length))
        tokens = self.contexts.length * COUNT
        return self.learned_bytes + cache + tokens + self.model.hidden_bytes + 4 * COUNT + LOSS_BYTES

    def _begin(self, before: int) -> int:
        """Where the context of the last token begins; one that has been read to its end waits for the next token."""
        return self.contexts.bounds(max(before - 1, 0))[0]

    def _open(self, before: int) -> tuple[int, int, int]:
        """Begin of the context, begin of the segment that is not learned from, and where the segment ends."""
        begin, end = self.contexts.bounds(max(before - 1, 0))
        segment = self.config.segment
        fill_begin = begin + max(before - 1 - begin, 0) // segment * segment
        return begin, fill_begin, min(fill_begin + segment, end)

    def _room(self, before: int) -> int:
        return self._open(before)[2] - before

    def _row(self, row: Row, logprobs: bool) -> int:
        at, rest = row
        flops = self.model.head(1) if logprobs and rest else 0
        waits = True
        while rest:
            begin, fill_begin, end = self._open(at) if waits else self._next(at)
            if at == end:  # an earlier call has read the segment
                flops += self._learned(begin, fill_begin, end)
                waits = False
                continue
            room = end - at
            count = min(room, rest)
            if rest > room and at == fill_begin:
                flops += self._learned(begin, at, end)
                waits = False
            else:
                predicted = min(count, rest - 1) if logprobs else 0
                flops += self.model.blocks(count, self.model.pairs(at - begin, count)) + self.model.head(predicted)
                waits = True
            at, rest = at + count, rest - count
        return flops

    def _next(self, at: int) -> tuple[int, int, int]:
        """As `_open`, where all that was read has been learned from."""
        begin, end = self.contexts.bounds(at)
        return begin, at, min(at + self.config.segment, end)

    def _learned(self, begin: int, fill_begin: int, end: int) -> int:
        """FLOPs of a segment with its update, and of the context read again where its cache is renewed."""
        tokens = end - fill_begin
        forward = self.model.blocks(tokens, self.model.pairs(fill_begin - begin, tokens)) + self.model.head(tokens)
        if not self.config.lr:
            return forward
        again = self.config.cache == "recomputed" and end < self.contexts.bounds(begin)[1]
        return 3 * forward + (self.model.blocks(end - begin, self.model.pairs(0, end - begin)) if again else 0)
