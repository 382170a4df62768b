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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pydantic
import torch
from pydantic import Field
from torch import Tensor

from contextlab import files, locks, seals
from contextlab.backbone import Backbone
from contextlab.errors import UserError
from contextlab.files import Journal
from contextlab.paths import cache_dir
from contextlab.training.sources import CorpusSource, TrainingText, open_source

FORM = 1
"""Rises when the same files would be tokenised otherwise."""
HELD_BACK = 0.05
"""Share of the documents that is held back."""
LEAST_HELD_BACK = 2
WANTED_HELD_BACK, MOST_HELD_BACK = 12, 0.2
"""Documents that are held back where their share is smaller, unless they are more than a fifth of all."""
FEW, END = 5, 0.2
"""Of fewer different documents the end of each is held back, this share of its tokens, and no whole document."""
TOKENS, ABOUT = "tokens.bin", "documents.json"
CACHED = "corpora-2"
"""In the cache: its number rises when the same files would be divided into other documents."""
LARGEST = 2**32
"""The most bytes of the file about the documents."""


@dataclasses.dataclass(frozen=True)
class DocumentSpan:
    """A document inside the file of tokens.

    Attributes:
        name: its file and number there.
        sha256: of its text.
        start: index of its first token.
        tokens: how many it has.
        about: title, author, source and licence, where the corpus names them.
        context: tokens at its beginning that its prompts and answers are about.
        answers: first token and end of every answer; without any, the loss of all tokens counts.
        part: which part of its text it is; an end is held back.
    """

    name: str
    sha256: str
    start: int
    tokens: int
    about: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    context: int = 0
    answers: tuple[tuple[int, int], ...] = ()
    part: Literal["whole", "beginning", "end"] = "whole"

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
        ids: the tokens of all documents, one document after the other.
        most: the largest token.
        held: which documents are for validation: some of them, or all or none where another corpus is beside it.
    """

    name: str
    key: str
    files: Mapping[str, str]
    documents: tuple[DocumentSpan, ...]
    ids: np.ndarray[Any, Any]
    most: int = 0
    held: Literal["some", "all", "none"] = "some"

    def piece(self, document: int, begin: int = 0, end: int | None = None) -> Tensor:
        """`tokens_T` of a document, int64."""
        entry = self.documents[document]
        end = entry.tokens if end is None else min(end, entry.tokens)
        return torch.from_numpy(self.ids[entry.start + begin : entry.start + end].astype(np.int64))

    @functools.cached_property
    def held_back(self) -> list[int]:
        """Documents for validation, in a separate order.

        A document's digest decides, so that adding others changes little; copies of a text are held back together.
        """
        if self.held == "none":
            return []
        first = {entry.sha256: n for n, entry in reversed([*enumerate(self.documents)])}
        ends = sorted(n for n in first.values() if self.documents[n].part == "end")
        if ends:
            return ends
        rank = {entry.sha256: _rank(entry.sha256) for entry in self.documents}
        ordered = sorted(rank, key=lambda sha256: rank[sha256])
        usual = min(WANTED_HELD_BACK, int(MOST_HELD_BACK * len(rank)))
        few = max(LEAST_HELD_BACK, usual, sum(share < HELD_BACK for share in rank.values()))
        few = len(rank) if self.held == "all" else few
        return [first[sha256] for sha256 in ordered[:few]]

    @functools.cached_property
    def training(self) -> list[int]:
        """Documents to train on.

        Raises:
            UserError: when none is left.
        """
        texts = {self.documents[n].sha256 for n in self.held_back}
        numbers = [n for n, entry in enumerate(self.documents) if entry.sha256 not in texts]
        if not numbers:
            raise UserError(
                f"The corpus {self.name} has {len(self.documents)} documents, and {LEAST_HELD_BACK} are held back for "
                f"validation: give at least {LEAST_HELD_BACK + 1} that differ, or other texts with --validation."
            )
        return numbers

    def beside(self, other: Corpus) -> Corpus:
        """This corpus without held-back documents, for another one is there to validate on.

        Raises:
            UserError: when a text is in both.
        """
        both = {entry.sha256 for entry in self.documents} & {entry.sha256 for entry in other.documents}
        if both:
            first = next(entry.name for entry in self.documents if entry.sha256 in both)
            raise UserError(
                f"{len(both)} texts of {self.name} are in {other.name} too, as {first}: take them out of one of both."
            )
        return dataclasses.replace(self, held="none")

    def with_ends_held_back(self) -> Corpus:
        """This corpus; where it has few documents, each is divided into a beginning, and an end that is held back.

        Documents with answers stay whole, and so does one of a few tokens.
        """
        few = len({entry.sha256 for entry in self.documents}) < FEW
        if not few or any(entry.answers or int(END * entry.tokens) < 2 for entry in self.documents):
            return self
        return dataclasses.replace(self, documents=tuple(part for entry in self.documents for part in _parts(entry)))

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


class _About(pydantic.BaseModel):
    """The file about the documents; `most` is the largest token."""

    schema_: Literal[2] = Field(alias="schema")
    key: str
    width: Literal["<u2", "<u4"]
    tokens: int = Field(ge=1)
    most: int = Field(ge=0)
    sha256: str
    documents: tuple[DocumentSpan, ...] = Field(min_length=1)


def _parts(entry: DocumentSpan) -> tuple[DocumentSpan, DocumentSpan]:
    """The beginning and the end of a document."""
    cut = entry.tokens - int(END * entry.tokens)
    beginning = dataclasses.replace(entry, tokens=cut, part="beginning")
    end = {"start": entry.start + cut, "tokens": entry.tokens - cut, "sha256": f"{entry.sha256} end", "part": "end"}
    return beginning, dataclasses.replace(entry, **end)  # type: ignore[arg-type]


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
    folder = cache_dir() / CACHED / key[:20]
    corpus = _cached(folder, source, key)
    if corpus is None:
        with files.writing(folder.parent, "set CONTEXTLAB_CACHE"):
            folder.parent.mkdir(parents=True, exist_ok=True)
            with locks.held("corpora"):
                corpus = _cached(folder, source, key) or _build(source, backbone, folder, key)
    _check_ids(corpus.most, backbone)
    return corpus


def _cached(folder: Path, source: CorpusSource, key: str) -> Corpus | None:
    """The corpus in a folder of the cache; None where there is none, or it is not whole: it is made again."""
    try:
        return stored(folder, source.name, source.digests, key)
    except FileNotFoundError:
        return None
    except seals.Damaged as damaged:
        print(f"Tokenising {source.name} again: {folder} is not what was written ({damaged}).", file=sys.stderr)
        return None


def stored(folder: Path, name: str, digests: Mapping[str, str], key: str | None = None) -> Corpus:
    """The corpus in a folder of the cache, whose content is what was written.

    Args:
        folder: that `prepare` made.
        name: of the corpus.
        digests: sha256 of every file that it is made from.
        key: that it must have.

    Raises:
        FileNotFoundError: when there is none.
        seals.Damaged: when it is not what was written.
    """
    about = seals.read(folder / ABOUT, _About, most=LARGEST)
    try:
        sha256 = files.sha256(folder / TOKENS)
    except OSError as error:
        raise seals.Damaged(f"{TOKENS}: {files.reason(error)}") from None
    if sha256 != about.sha256:
        raise seals.Damaged(f"{TOKENS} has another sha256")
    if not about.key.startswith(folder.name) or about.key != (key or about.key):
        raise seals.Damaged("it holds another corpus")
    ids = np.memmap(folder / TOKENS, dtype=np.dtype(about.width), mode="r")
    return Corpus(name, about.key, dict(digests), about.documents, ids, about.most)


def _key(source: CorpusSource, backbone: Backbone) -> str:
    parts = [FORM, sorted(source.digests.items()), backbone.tokenizer_digest, str(_width(backbone))]
    parts += backbone.with_bos([])
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _width(backbone: Backbone) -> np.dtype[Any]:
    return np.dtype("<u2" if backbone.vocab_size <= 2**16 else "<u4")


def _build(source: CorpusSource, backbone: Backbone, folder: Path, key: str) -> Corpus:
    """Tokenise every document into a folder that is there as a whole or not at all."""
    # The lock is held: nobody is writing a partial folder.
    files.sweep(folder.parent, 0)
    shutil.rmtree(folder, ignore_errors=True)
    if sys.stderr.isatty():
        print(f"Tokenising {source.name} (once) ...", file=sys.stderr)
    width, entries, start, most = _width(backbone), list[dict[str, Any]](), 0, 0
    with files.new_folder(folder) as fresh:
        with Journal(fresh / TOKENS) as tokens:
            for document in source.documents():
                first, *later = (backbone.encode(part.text) for part in document.parts)
                pieces = [backbone.with_bos(first), *later]
                ids = np.asarray([token for piece in pieces for token in piece], dtype=np.int64)
                if not len(ids):
                    continue
                most = max(most, int(ids.max()))
                _check_ids(most, backbone)
                tokens.write(ids.astype(width).tobytes())
                about_answers = _answers(document, [len(piece) for piece in pieces])
                entry = DocumentSpan(document.name, document.sha256, start, len(ids), document.about, *about_answers)
                entries.append(dataclasses.asdict(entry))
                start += len(ids)
        if not entries:
            raise UserError(f"The corpus {source.name} holds no text: give files that are not empty.")
        about = {"schema": 2, "key": key, "width": width.str, "tokens": start, "most": most}
        seals.write(fresh / ABOUT, {**about, "sha256": files.sha256(fresh / TOKENS), "documents": entries})
    return stored(folder, source.name, source.digests, key)


def _answers(document: TrainingText, lengths: Sequence[int]) -> tuple[int, tuple[tuple[int, int], ...]]:
    """Tokens of a document's context, and first token and end of its answers."""
    ends = list(itertools.accumulate(lengths))
    marked = zip(document.parts, lengths, ends, strict=True)
    answers = tuple((end - length, end) for part, length, end in marked if part.answer and length)
    return (lengths[0] if answers else 0), answers


def _check_ids(most: int, backbone: Backbone) -> None:
    if most >= backbone.vocab_size:
        raise UserError(
            f"The tokenizer of {backbone.name} gives token {most}, and the model knows {backbone.vocab_size}: use a "
            "tokenizer that fits it."
        )
