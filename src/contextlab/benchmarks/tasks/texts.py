"""Perplexity of texts of the user's: the files of a folder, or a column of a table."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import ClassVar

import pydantic

from contextlab.benchmarks.configs import PerplexityConfig
from contextlab.benchmarks.data import named_files, tables
from contextlab.benchmarks.data.named_files import NamedFiles
from contextlab.benchmarks.examples import Document
from contextlab.benchmarks.task import Dataset
from contextlab.benchmarks.tasks.folder import read_texts
from contextlab.benchmarks.tasks.own import OwnFiles, count_of, own_dataset, sample_of
from contextlab.benchmarks.tasks.perplexity import PerplexityTask
from contextlab.errors import UserError

TEXT_FORMS = tuple(form + packing for form in (".txt", ".md") for packing in named_files.PACKINGS)
SAMPLE_WORDS, SAMPLE_TEXTS, SAMPLE_SEED = 2_000, 8, 42


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class TextsConfig(PerplexityConfig):
    """Which texts are read.

    Attributes:
        path: folder of texts (txt, md, at any depth), one of them, a table with a column of texts (jsonl, json, csv,
            tsv, parquet), all also packed as .gz or .xz, or hub:NAME; without it the generated sample.
        column: of a table, that holds the texts.
        cluster: column of a table that says which texts belong together; each text alone when "".
    """

    path: str = ""
    column: str = "text"
    cluster: str = ""


class OwnTexts(PerplexityTask, OwnFiles):
    """Perplexity of texts of yours, by token and by word."""

    name: ClassVar[str] = "texts"
    Config = TextsConfig
    config: TextsConfig
    forms = (*TEXT_FORMS, *tables.FORMS)

    def load(self, split: str, data: Path | None) -> Dataset:
        """The texts in the order of the names of their files; where a folder holds texts, its tables are not read.

        Raises:
            UserError: when there is no file, or one of them, or a row of it, cannot be used.
        """
        from contextlab.benchmarks.data.sample import documents

        self.check_split(split)
        path = self.config.path
        if not path:
            return sample_of(documents(SAMPLE_WORDS, SAMPLE_TEXTS, SAMPLE_SEED))
        named = self.files(path)
        files = {name: file for name, file in named.files.items() if named_files.has_ending(file, TEXT_FORMS)}
        examples, sha256 = self._files(files) if files else self._rows(named)
        tables_beside = named.files.keys() - files.keys() if files else ()
        left_out = sorted((*named.left_out, *tables_beside))
        return own_dataset(examples, path, sha256, count_of(len(examples), "text"), left_out)

    def _files(self, files: dict[str, Path]) -> tuple[list[Document], str]:
        if self.config.cluster:
            raise UserError(f"cluster={self.config.cluster} is a column, and files of texts have none: leave it out.")
        texts, sha256 = read_texts(files)
        return [Document(name, text) for name, text in texts.items()], sha256

    def _rows(self, named: NamedFiles) -> tuple[list[Document], str]:
        documents: list[Document] = []
        for path in named.files.values():
            for row in tables.rows(path):
                if self.config.column not in row.values:
                    raise tables.without_column(self.config.column, row, "column=NAME")
                cluster = row.text(self.config.cluster) if self.config.cluster else None
                documents.append(Document(f"text {len(documents) + 1}", row.text(self.config.column), cluster))
        digests = "\n".join(map(named_files.digest, named.files.values()))
        if not documents:
            raise UserError(f"{named.name} holds no texts: write a header and lines, or one JSON object a line.")
        return documents, hashlib.sha256(digests.encode()).hexdigest()
