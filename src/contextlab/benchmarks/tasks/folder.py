"""Perplexity of the texts in a folder, in which every file is a document."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from contextlab.benchmarks.data import named_files
from contextlab.benchmarks.data.sources import Location, named_root
from contextlab.benchmarks.data.tables import whole_text
from contextlab.benchmarks.examples import Document
from contextlab.benchmarks.task import Dataset
from contextlab.benchmarks.tasks.perplexity import PerplexityTask, sample_documents
from contextlab.errors import UserError
from contextlab.paths import cache_dir


class FolderTask(PerplexityTask):
    """Base class of the tasks that read whole files; nothing is removed from them.

    Attributes:
        folders: by split, folders below the data folder; the first one that exists is read, with its subfolders.
        endings: endings of the names of texts; `.gz` may follow.
        sample: numbers of documents and words of the generated sample.
        seeds: seeds of the generated sample, by split.
    """

    folders: ClassVar[dict[str, tuple[str, ...]]]
    endings: ClassVar[tuple[str, ...]] = (".txt",)
    sample: ClassVar[tuple[int, int]]
    seeds: ClassVar[dict[str, int]]

    def load(self, split: str, data: Path | None) -> Dataset:
        """The texts in the order of their paths, with numbers in numeric order; the digest covers paths and files.

        Raises:
            UserError: when the folder is missing, holds no text, or a text is empty or not UTF-8.
        """
        split = self.check_split(split)
        location = self._locate(split, data)
        if location.path is None:
            count, words = self.sample
            return sample_documents(words, count, self.seeds[split], self.name)
        files = _texts(location.path, self.endings)
        if not files:
            endings = " or ".join(self.endings)
            raise UserError(
                f"{location.path} holds no file ending in {endings}[.gz]: put the texts of {self.name} there."
            )
        texts, digest = read_texts(files)
        documents = tuple(
            Document(f"{split}/{Path(name).with_suffix('').as_posix()}", text) for name, text in texts.items()
        )
        return Dataset(documents, location.source, digest, self.note(split, location.path, len(documents)))

    def note(self, split: str, folder: Path, documents: int) -> str:
        """One sentence about the texts of a folder."""
        raise NotImplementedError

    def _locate(self, split: str, data: Path | None) -> Location:
        named = named_root(data)
        root = named or cache_dir() / "data"
        path = next((root / name for name in self.folders[split] if (root / name).is_dir()), None)
        if path is None and named:
            raise UserError(f"There is no folder {root / self.folders[split][0]}: name a data folder that holds it.")
        return Location(path, "local" if path else "sample")


def read_texts(files: Mapping[str, Path]) -> tuple[dict[str, str], str]:
    """The texts of files by their names, with numbers in numeric order; and the digest of names and files.

    Raises:
        UserError: when a file cannot be read, is empty, or is no text in UTF-8.
    """
    named = {name: files[name] for name in sorted(files, key=_natural)}
    texts = {name: whole_text(path) for name, path in named.items()}
    listed = "".join(f"{named_files.digest(path)}  {name}\n" for name, path in named.items())
    return texts, hashlib.sha256(listed.encode()).hexdigest()


def _texts(folder: Path, endings: tuple[str, ...]) -> dict[str, Path]:
    """The files below a folder, by their paths in it without `.gz`; a plain file replaces a packed file of its name."""
    return {
        path.relative_to(folder).as_posix().removesuffix(".gz"): path
        for path in sorted(folder.rglob("*"), reverse=True)
        if path.is_file() and path.name.removesuffix(".gz").endswith(endings)
    }


def _natural(name: str) -> list[str | int]:
    # Text and numbers alternate, so that text is compared with text and numbers with numbers.
    return [int(part) if n % 2 else part for n, part in enumerate(re.split(r"(\d+)", name))]
