"""A corpus as tokens: tokenised once into a file that is mapped into memory, with some documents held back.

Legend: T tokens.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from contextlab import locks
from contextlab.backbone import Backbone
from contextlab.errors import UserError
from contextlab.paths import cache_dir
from contextlab.training.sources import Document, Source, open_source

FORM = 1
"""Rises when the same files would be tokenised otherwise."""
HELD_BACK = 0.05
LEAST_HELD_BACK = 2
TOKENS, ABOUT = "tokens.bin", "documents.json"


@dataclasses.dataclass(frozen=True)
class Entry:
    """A document inside the file of tokens.

    Attributes:
        name: its file and number there.
        sha256: of its text.
        start: index of its first token.
        tokens: how many it has.
        about: title, author, source and licence, where the corpus names them.
        context: tokens at its beginning that its prompts and answers are about.
        answers: first token and end of every answer; without any, the loss of all tokens counts.
    """

    name: str
    sha256: str
    start: int
    tokens: int
    about: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    context: int = 0
    answers: tuple[tuple[int, int], ...] = ()

    def marks(self, begin: int, end: int) -> list[int]:
        """For tokens `begin` to `end`, 1 where a token's loss counts and 0 elsewhere."""
        if not self.answers:
            return [1] * (end - begin)
        marks = [0] * (end - begin)
        for first, last in self.answers:
            for n in range(max(first, begin), min(last, end)):
                marks[n - begin] = 1
        return marks


@dataclasses.dataclass(frozen=True)
class Corpus:
    """The tokens of documents.

    Attributes:
        name: of the folder, file or data set.
        key: sha256 over the files and the tokenizer.
        files: sha256 of every file.
        documents: in the order of the files.
        ids: the tokens of all documents, one document behind the other.
    """

    name: str
    key: str
    files: Mapping[str, str]
    documents: tuple[Entry, ...]
    ids: np.ndarray[Any, Any]

    def piece(self, document: int, begin: int = 0, end: int | None = None) -> Tensor:
        """`tokens_T` of a document, int64."""
        entry = self.documents[document]
        end = entry.tokens if end is None else min(end, entry.tokens)
        return torch.from_numpy(self.ids[entry.start + begin : entry.start + end].astype(np.int64))

    @functools.cached_property
    def held_back(self) -> list[int]:
        """Documents for validation, in an order of their own.

        A document's digest decides, so that adding others changes little; copies of a text are held back together.
        """
        rank = {entry.sha256: _rank(entry.sha256) for entry in self.documents}
        ordered = sorted(rank, key=lambda sha256: rank[sha256])
        few = max(LEAST_HELD_BACK, sum(share < HELD_BACK for share in rank.values()))
        first = {entry.sha256: n for n, entry in reversed([*enumerate(self.documents)])}
        return [first[sha256] for sha256 in ordered[:few]]

    @functools.cached_property
    def training(self) -> list[int]:
        """Documents to train on.

        Raises:
            UserError: when none is left.
        """
        texts = {self.documents[n].sha256 for n in self.held_back}
        left = [n for n, entry in enumerate(self.documents) if entry.sha256 not in texts]
        if not left:
            raise UserError(
                f"The corpus {self.name} has {len(self.documents)} documents, and {LEAST_HELD_BACK} are held back for "
                f"validation: give at least {LEAST_HELD_BACK + 1} that differ."
            )
        return left

    def check(self, segment: int) -> None:
        """Refuse a corpus that has no segment to train on.

        Raises:
            UserError: saying how many tokens there are.
        """
        longest = max(self.documents[n].tokens for n in self.training)
        if longest < segment:
            raise UserError(
                f"The longest document to train on in {self.name} has {longest} tokens, fewer than a segment of "
                f"{segment}: give longer texts, or --segment {longest}."
            )


def _rank(sha256: str) -> float:
    """A number from 0 to 1 that a text's digest gives it."""
    return int(hashlib.sha256(f"held back {sha256}".encode()).hexdigest()[:8], 16) / 16**8


def prepare(path: str | Path, backbone: Backbone) -> Corpus:
    """The corpus of a folder, file or data set in a backbone's tokens, from the cache where it has them.

    Raises:
        UserError: as `sources.open_source`; when there are no documents, or the cache cannot be written.
    """
    source = open_source(path)
    key = _key(source, backbone)
    folder = cache_dir() / "corpora" / key[:20]
    corpus = _stored(folder, source, key)
    if corpus is not None:
        return corpus
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locks.held("corpora"):
            corpus = _stored(folder, source, key)
            if corpus is None:
                _build(source, backbone, folder)
                corpus = _stored(folder, source, key)
    except OSError as error:
        raise UserError(
            f"The cache folder {folder.parent} cannot be written ({error.strerror}): set CONTEXTLAB_CACHE."
        ) from error
    assert corpus is not None
    return corpus


def _key(source: Source, backbone: Backbone) -> str:
    parts = [FORM, sorted(source.digests.items()), backbone.tokenizer_digest, str(_width(backbone))]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _width(backbone: Backbone) -> np.dtype[Any]:
    return np.dtype("<u2" if backbone.vocab_size <= 2**16 else "<u4")


def _build(source: Source, backbone: Backbone, folder: Path) -> None:
    """Tokenise every document into a folder that is there as a whole or not at all."""
    for partial in folder.parent.glob(".partial-*"):
        # The lock is held: nobody is writing them any more.
        shutil.rmtree(partial, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)
    if sys.stderr.isatty():
        print(f"Tokenising {source.name} (once) ...", file=sys.stderr)
    width, entries, start = _width(backbone), list[dict[str, Any]](), 0
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".partial-") as scratch:
        written = Path(scratch, "corpus")
        written.mkdir()
        with open(written / TOKENS, "wb") as file:
            for document in source.documents():
                pieces = [backbone.encode(part.text) for part in document.parts]
                ids = np.asarray([token for piece in pieces for token in piece], dtype=np.int64)
                if not len(ids):
                    continue
                _check_ids(ids, backbone)
                file.write(ids.astype(width).tobytes())
                about_answers = _answers(document, [len(piece) for piece in pieces])
                entry = Entry(document.name, document.sha256, start, len(ids), document.about, *about_answers)
                entries.append(dataclasses.asdict(entry))
                start += len(ids)
        if not entries:
            raise UserError(f"The corpus {source.name} holds no text: give files that are not empty.")
        about = {"width": width.str, "tokens": start, "documents": entries}
        (written / ABOUT).write_text(json.dumps(about), "utf-8")
        written.replace(folder)


def _answers(document: Document, lengths: Sequence[int]) -> tuple[int, tuple[tuple[int, int], ...]]:
    """Tokens of a document's context, and first token and end of its answers."""
    ends = list(itertools.accumulate(lengths))
    marked = zip(document.parts, lengths, ends, strict=True)
    answers = tuple((end - length, end) for part, length, end in marked if part.answer and length)
    return (lengths[0] if answers else 0), answers


def _check_ids(ids: Sequence[int] | np.ndarray[Any, Any], backbone: Backbone) -> None:
    if max(ids) >= backbone.vocab_size:
        raise UserError(
            f"The tokenizer of {backbone.name} gives token {max(ids)}, and the model knows {backbone.vocab_size}: use "
            "a tokenizer that fits it."
        )


def _entry(stored: Mapping[str, Any]) -> Entry:
    answers = tuple((first, end) for first, end in stored.get("answers", ()))
    return Entry(**{**stored, "answers": answers})


def _stored(folder: Path, source: Source, key: str) -> Corpus | None:
    """The corpus of a folder in the cache; None where it is not there, or not whole."""
    try:
        about = json.loads((folder / ABOUT).read_text("utf-8"))
        entries = tuple(_entry(entry) for entry in about["documents"])
        width = np.dtype(about["width"])
        if (folder / TOKENS).stat().st_size != about["tokens"] * width.itemsize or not entries:
            return None
        ids = np.memmap(folder / TOKENS, dtype=width, mode="r")
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Corpus(source.name, key, dict(source.digests), entries, ids)
