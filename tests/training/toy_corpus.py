"""Small corpora and runs of toy models, for the tests of training."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contextlab import backbone as backbones
from contextlab.backbone import Backbone
from contextlab.method import AnyMethod
from contextlab.methods.longmem import LongMem, LongMemConfig
from contextlab.training.corpus import Corpus, DocumentSpan, prepare
from contextlab.training.options import TrainConfig

WORDS = ["the", "old", "sea", "light", "keeper", "wrote", "again", "of", "ships", "that", "never", "came", "back"]


def text(seed: int, words: int) -> str:
    draw = random.Random(seed)
    own = [f"{draw.choice(WORDS)}{seed}" for _ in range(4)]
    return " ".join(draw.choice(WORDS + own) for _ in range(words))


def folder(path: Path, documents: int = 9, words: int = 120) -> Path:
    """A folder with documents of different lengths in one text file."""
    path.mkdir(parents=True, exist_ok=True)
    texts = [text(n, words + 7 * n) for n in range(documents)]
    (path / "books.txt").write_text("".join(f"{document}\f\n" for document in texts), "utf-8")
    return path


def tiny(name: str = "tiny-llama") -> Backbone:
    return backbones.load(name, device="cpu")


def corpus(path: Path, monkeypatch: pytest.MonkeyPatch, backbone: Backbone | None = None, **size: int) -> Corpus:
    """A prepared corpus, in a cache of its own."""
    monkeypatch.setenv("CONTEXTLAB_CACHE", str(path / "cache"))
    return prepare(folder(path / "texts", **size), backbone or tiny())


def corpus_of(lengths: list[int], shas: list[str] | None = None) -> Corpus:
    starts = np.cumsum([0, *lengths])
    entries = tuple(
        DocumentSpan(f"d{n}", (shas or [f"{n:064x}" for n in range(len(lengths))])[n], int(starts[n]), length)
        for n, length in enumerate(lengths)
    )
    return Corpus("made", "key", {}, entries, np.arange(starts[-1], dtype=np.uint16))


def learner(backbone: Backbone | None = None, **settings: Any) -> AnyMethod:
    return LongMem(backbone or tiny(), LongMemConfig(**{"N": 32, "K": 8, "weights": "none", **settings}))


def options(**changed: Any) -> TrainConfig:
    return TrainConfig(**{"tokens": 600, "rows": 2, "segment": 32, "lr": 3e-3, **changed})
