"""The cost of text retrieval by arithmetic: that of full attention to what is in view."""

from __future__ import annotations

from collections.abc import Sequence

from contextlab.accounting.formulas import COUNT, Model
from contextlab.formula import Formula, Row, total
from contextlab.method import Lengths
from contextlab.methods.parts.text_retrieval.config import View

TOKEN_BYTES = 4


class TextFormula(Formula):
    """What is in view is read again after every search, and nothing until something is predicted.

    A subclass adds what its searches need.

    Args:
        model: sizes of the backbone.
        full: the formula of full attention.
        view: what is in view.
        ahead: of the text's start.
    """

    def __init__(self, model: Model, full: Formula, view: View, ahead: Lengths | None) -> None:
        self.model, self.full, self.view = model, full, view
        self.first = view.first(ahead.context if ahead else 0)

    def indexed(self, row: Row) -> int | None:
        """FLOPs of all that searches need of the tokens that a call reads."""
        return 0

    def searched(self, chunks: int, query: int) -> int | None:
        """FLOPs of one search for so many tokens."""
        return 0

    def read(self, rows: Sequence[Row], *, logprobs: bool) -> int | None:
        """All that is in view, again after every search."""
        flops, open_rows = [self.indexed(row) for row in rows], list(rows) if logprobs else []
        while any(row.tokens for row in open_rows):
            # A row that has ended has no view.
            positions = [row.before if row.tokens else 0 for row in open_rows]
            counts = [min(row.tokens, self.view.room(row.before, self.first)) for row in open_rows]
            flops.append(self._open(positions))
            read = zip(map(self._used, positions), counts, strict=True)
            flops.append(self.full.read([Row(*pair) for pair in read], logprobs=True))
            pairs = zip(open_rows, counts, strict=True)
            open_rows = [Row(row.before + count, row.tokens - count) for row, count in pairs]
        return total(flops)

    def score(self, before: int, candidates: Sequence[int]) -> int | None:
        """All candidates after one view where no search is inside of them."""
        if not 0 < max(candidates, default=0) <= self.view.room(before, self.first):
            return super().score(before, candidates)
        return total([self._open([before]), self.full.score(self._used(before), candidates)])

    def predict(self, befores: Sequence[int]) -> int | None:
        """What is in view, and a projection onto the vocabulary for every row."""
        return total([self._open(befores), self.full.predict([self._used(before) for before in befores])])

    def state_bytes(self, length: int) -> int:
        """Bytes of the tokens, of the hidden state after BOS, and of two counts."""
        return TOKEN_BYTES * length + self.model.hidden_bytes + 2 * COUNT

    def _beside_each_other(self, before: int, prompts: Sequence[int], count: int) -> int | None:
        """Rows that read on token by token, each again after a search."""
        flops, ends = list[int | None](), [before + length for length in prompts]
        for step in range(count):
            searching = [end for end in ends if not step or self.view.searched(end, self.first) == end]
            others = [end for end in ends if end not in searching]
            lengths = [1] * len(ends) if step else prompts
            flops += [self.indexed(Row(end - length, length)) for end, length in zip(ends, lengths, strict=True)]
            flops.append(self._open(searching))
            flops.append(self.full.read([Row(self._used(end - 1), 1) for end in others], logprobs=False))
            flops.append(self.full.predict([self._used(end) for end in ends]))
            ends = [end + 1 for end in ends]
        return total(flops)

    def _used(self, position: int) -> int:
        return self.view.used(position, self.first)

    def _open(self, positions: Sequence[int]) -> int | None:
        """A search for every row, and all that is in view then."""
        flops = [self.full.read([Row(0, self._used(position)) for position in positions], logprobs=False)]
        for position in positions:
            searched = self.view.searched(position, self.first)
            chunks = self.view.chunks(searched)
            if chunks > self.view.k:
                flops.append(self.searched(chunks, min(self.view.query, searched)))
        return total(flops)
