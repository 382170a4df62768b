"""PG-22 (Wang et al. 2023, LongMem, section 3.1): perplexity of books that Project Gutenberg released in 2020-2022.

The splits are the paper's ranges of length in tokens. A `books.jsonl` whose last bucket is "more than 500K" is divided
at 1M tokens, where the paper's S5 begins. The texts are read unchanged: hard-wrapped lines, `_italics_`, and notes on
illustrations and by transcribers are kept.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any, ClassVar

from contextlab.benchmarks.data import pg22_build, proofs
from contextlab.benchmarks.data.sources import field, json_lines, locate, plain_or_packed, read
from contextlab.benchmarks.examples import Document
from contextlab.benchmarks.task import Dataset
from contextlab.benchmarks.tasks.perplexity import PerplexityTask, sample_documents
from contextlab.errors import UserError

S5_TOKENS = 1_000_000
INSIDE = re.compile(r"(?!.*\.\.)\w[\w./-]{0,200}")
# Numbers of documents and words of the generated sample, with enough words for the least tokens of the split.
SAMPLE_SIZES = {"S1": (10, 6_000), "S2": (6, 16_000), "S3": (3, 90_000), "S4": (2, 450_000), "S5": (2, 900_000)}


class PG22(PerplexityTask):
    """Perplexity of recent books from Project Gutenberg, by token and by word."""

    name: ClassVar[str] = "pg22"
    splits: ClassVar[dict[str, str]] = {
        "S1": "5K to 10K tokens",
        "S2": "10K to 100K tokens",
        "S3": "100K to 500K tokens",
        "S4": "500K to 1M tokens",
        "S5": "more than 1M tokens",
    }
    default_split: ClassVar[str] = "S1"

    def load(self, split: str, data: Path | None) -> Dataset:
        """The books of a split, in the order of `books.jsonl`; the digest covers their texts.

        Raises:
            UserError: when a file is missing or broken, or no book has the length of the split.
        """
        split = self.check_split(split)
        location = locate(self.name, "books.jsonl", data)
        if location.path is None:
            count, words = SAMPLE_SIZES[split]
            return sample_documents(words, count, int(split[1:]), "PG-22")
        books = _books(location.path)
        chosen = [book for book in books if _split(book) == split]
        if not chosen:
            lengths = {_split(book) for book in books}
            present = [name for name in self.splits if name in lengths]
            advice = f"choose one of {', '.join(present)}" if present else "build the set again, or name another folder"
            raise UserError(f"{location.path} lists no book of split {split}: {advice}.")
        digest = hashlib.sha256("\n".join(book["sha256_txt"] for book in chosen).encode()).hexdigest()
        documents = tuple(_document(book, location.path.parent) for book in chosen)
        return Dataset(documents, location.source, digest, _note(chosen, books, location.path.parent))


def _books(path: Path) -> list[dict[str, Any]]:
    books = []
    for where, book in json_lines(path)[0]:
        for name, kind in (("id", str), ("file", str), ("sha256_txt", str), ("bucket", str), ("gpt2_tokens", int)):
            field(book, name, kind, where)
        if not INSIDE.fullmatch(book["file"]):
            raise UserError(f"{where} names no file inside the folder: replace books.jsonl with an intact copy.")
        books.append(book)
    return books


def _note(chosen: list[dict[str, Any]], books: list[dict[str, Any]], folder: Path) -> str:
    """The note: compares the list of books with the manifest, or the books with verified ones."""
    verified = proofs.verified("pg22", [proofs.item(book["id"], book["sha256_txt"]) for book in chosen])
    if verified or pg22_build.lists(folder, books):
        return "real: Project Gutenberg books released 2020-2022, drawn by the LongMem paper's rule, not its list"
    return proofs.unverified("PG-22", len(chosen), "book")


def _split(book: dict[str, Any]) -> str:
    return "S5" if book["gpt2_tokens"] > S5_TOKENS else str(book["bucket"])


def _document(book: dict[str, Any], folder: Path) -> Document:
    listed = folder / book["file"]
    text, _ = read(plain_or_packed(listed) or listed)
    if hashlib.sha256(text.encode()).hexdigest() != book["sha256_txt"]:
        raise UserError(f"{listed} is not the text that books.jsonl lists (sha256): replace it with an intact copy.")
    return Document(book["id"], text)
