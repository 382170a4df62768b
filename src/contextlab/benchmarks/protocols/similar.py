"""Similarity of texts: cosine of TF-IDF vectors over words, with scikit-learn's default weights."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence

WORD = re.compile(r"\b\w\w+\b")


class Similar:
    """An index of texts. Words are lower-cased and have two or more letters; inverse frequencies are smoothed."""

    def __init__(self, texts: Sequence[str]) -> None:
        counts = [Counter(WORD.findall(text.lower())) for text in texts]
        documents = Counter(word for count in counts for word in count)
        self._idf = {word: math.log((1 + len(texts)) / (1 + df)) + 1 for word, df in documents.items()}
        self._count = len(texts)
        self._postings: dict[str, list[tuple[int, float]]] = defaultdict(list)
        for number, count in enumerate(counts):
            for word, weight in self._vector(count).items():
                self._postings[word].append((number, weight))

    def ranked(self, text: str) -> list[int]:
        """Indices of all texts, the most similar to `text` first; ties keep the order of the index."""
        cosines = [0.0] * self._count
        for word, weight in self._vector(Counter(WORD.findall(text.lower()))).items():
            for number, other in self._postings[word]:
                cosines[number] += weight * other
        # Rounded, since sums over the same words in another order differ in the last bits.
        return sorted(range(self._count), key=lambda number: -round(cosines[number], 12))

    def _vector(self, count: Counter[str]) -> dict[str, float]:
        weights = {word: times * self._idf[word] for word, times in count.items() if word in self._idf}
        norm = math.sqrt(sum(weight * weight for weight in weights.values()))
        return {word: weight / norm for word, weight in weights.items()}
