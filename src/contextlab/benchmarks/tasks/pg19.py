"""PG-19 (Rae et al. 2019): perplexity of books that were published before 1919.

The files are those of upstream's bucket, `pg19/test/<number>.txt` and `pg19/validation/<number>.txt`, in which
offensive words are replaced by `<DW>`; they are read unchanged.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from contextlab.benchmarks.data import proofs
from contextlab.benchmarks.tasks.folder import FolderTask

BOOKS = {"test": 100, "validation": 50}


class PG19(FolderTask):
    """Perplexity of books from before 1919, by token and by word."""

    name: ClassVar[str] = "pg19"
    splits: ClassVar[dict[str, str]] = {split: f"{books} books upstream" for split, books in BOOKS.items()}
    default_split: ClassVar[str] = "test"
    folders: ClassVar[dict[str, tuple[str, ...]]] = {split: (f"pg19/{split}",) for split in BOOKS}
    sample: ClassVar[tuple[int, int]] = (4, 40_000)
    seeds: ClassVar[dict[str, int]] = {"test": 19, "validation": 20}

    def note(self, split: str, folder: Path, documents: int) -> str:
        """Digests of the books are not published, so that no file can be verified."""
        part = "" if documents == BOOKS[split] else f" in place of {BOOKS[split]}, not a result on PG-19"
        return proofs.unverified(f"PG-19 {split}", documents, "book", part)
