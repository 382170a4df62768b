"""The search for chunks by BM25 (Robertson & Zaragoza 2009), in bm25s."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Sequence
from typing import TYPE_CHECKING

from contextlab.backbone import Backbone
from contextlab.errors import UserError

if TYPE_CHECKING:
    from bm25s import BM25

CHUNKS, INDICES = 2**17, 4
"""Texts of chunks, and indices, that are kept for further searches: both follow from the tokens of a state."""


class Search:
    """Searches in the chunks of texts.

    Args:
        backbone: whose tokens these are.

    Raises:
        UserError: when bm25s is not installed, or the backbone has no tokenizer.
    """

    def __init__(self, backbone: Backbone) -> None:
        if importlib.util.find_spec("bm25s") is None:
            raise UserError("bm25 needs the library bm25s: pip install 'contextlab[bm25]'.")
        if backbone.tokenizer is None:
            raise UserError("This model was given without a tokenizer: pass one to search in text.")
        self._words = functools.lru_cache(CHUNKS)(lambda tokens: words(backbone.decode(list(tokens))))
        self._index = functools.lru_cache(INDICES)(index)

    def best(self, chunks: Sequence[Sequence[int]], query: Sequence[int], k: int) -> list[int]:
        """The numbers of the k chunks with the highest scores, in the order of the text; of equal ones the newest."""
        if len(chunks) <= k:
            return list(range(len(chunks)))
        words, texts = list(self._words(tuple(query))), tuple(self._words(tuple(chunk)) for chunk in chunks)
        scores = [0.0] * len(texts)
        if words and any(texts):
            scores = self._index(texts).get_scores(words).tolist()
        return sorted(sorted(range(len(texts)), key=lambda number: (-scores[number], -number))[:k])


def words(text: str) -> tuple[str, ...]:
    """The words of a text in lower case; none is left out, whatever the language."""
    import bm25s

    (in_order,) = bm25s.tokenize([text], stopwords=[], return_ids=False, show_progress=False)
    return tuple(in_order)


def index(texts: tuple[tuple[str, ...], ...]) -> BM25:
    """The index of chunks, of which at least one has words."""
    import bm25s

    retriever = bm25s.BM25()
    retriever.index([list(text) for text in texts], show_progress=False)
    return retriever
