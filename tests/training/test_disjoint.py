"""No evaluation text is trained on: 13-word shingles of the training corpus and of the evaluation data."""

from __future__ import annotations

import gzip
import json
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


PIECE = 2**21
"""Bytes that are hashed at one time."""
BASE = 0x9E3779B97F4A7C15
PLAIN = bytes(n if chr(n).isalnum() and n < 128 else 32 for n in range(256))


class Shingler:
    """Hashes of the sampled shingles of texts, modulo 2**64.

    A word's hash is a polynomial of its bytes, read off sums over the whole text; a shingle's is one of its words.
    """

    def __init__(self) -> None:
        with np.errstate(over="ignore"):
            self.powers = np.cumprod(np.full(PIECE, BASE, np.uint64))
            self.inverse = np.cumprod(np.full(PIECE, pow(BASE, -1, 2**64), np.uint64))
        self.places = np.random.default_rng(1).integers(1, 2**62, WORDS, dtype=np.uint64) | np.uint64(1)

    def __call__(self, text: str) -> Hashes:
        plain = text.lower().encode("ascii", "ignore").translate(PLAIN)
        pieces = [self._hashes(plain[begin : begin + PIECE]) for begin in range(0, len(plain), PIECE)]
        return np.concatenate([np.empty(0, np.uint64), *pieces])

    def _hashes(self, plain: bytes) -> Hashes:
        letters = np.frombuffer(plain, np.uint8)
        inside = np.concatenate(([False], letters != 32, [False])).astype(np.int8)
        begins, ends = (np.flatnonzero(np.diff(inside) == step) for step in (1, -1))
        if len(begins) < WORDS:
            return np.empty(0, np.uint64)
        with np.errstate(over="ignore"):
            sums = np.concatenate((np.zeros(1, np.uint64), np.cumsum(letters * self.powers[: len(letters)])))
            words = (sums[ends] - sums[begins]) * self.inverse[begins]
            words ^= words >> np.uint64(32)
            last = len(words) - WORDS + 1
            shingles = sum(words[n : last + n] * place for n, place in enumerate(self.places))
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
            yield (
                f"chapterbreak/{split}/{work}",
                "\n".join(f"{example['ctx']} {example['pos']}" for example in examples),
            )
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


def test_shingles_are_of_words_whatever_stands_between_them() -> None:
    draw = np.random.default_rng(3)
    words = [f"w{n}" for n in draw.integers(0, 3000, 2000)]
    shingle = Shingler()
    plain = shingle(" ".join(words))
    assert np.array_equal(plain, shingle(",\n".join(words).upper()))
    moved = shingle(" ".join(["before", *words]))
    assert np.isin(plain, moved).all()
    assert len(plain) == pytest.approx(len(words) / SAMPLED, rel=0.3)
    assert not np.isin(plain, shingle(" ".join(words[::-1]))).any()


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
