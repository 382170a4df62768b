"""The cost of text retrieval with the backbone's own vectors, by arithmetic."""

from __future__ import annotations

from contextlab.accounting.formulas import COUNT, WIDE_BYTES
from contextlab.formula import Row, total
from contextlab.methods.parts.text_retrieval import TextFormula


class DenseFormula(TextFormula):
    """Every whole chunk is read once by itself, and for a search the query; their vectors have the model's width."""

    def indexed(self, row: Row) -> int | None:
        """A pass over every chunk that the tokens complete."""
        chunk = self.view.chunk
        chunks = (row.before + row.tokens) // chunk - row.before // chunk
        passes = self.full.read([Row(0, chunk)], logprobs=False)
        return None if passes is None else chunks * passes

    def searched(self, chunks: int, query: int) -> int | None:
        """A pass over the query, and its products with all chunks."""
        return total([self.full.read([Row(0, query)], logprobs=False), 2 * chunks * self.model.width])

    def state_bytes(self, length: int) -> int:
        """Bytes of the text, of the vectors, and of their count."""
        return super().state_bytes(length) + length // self.view.chunk * self.model.width * WIDE_BYTES + COUNT
