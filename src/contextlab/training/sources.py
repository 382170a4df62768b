"""Texts to train on: the documents of a folder, of one file, or of a data set on the hub."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from contextlab.benchmarks.data import named_files
from contextlab.benchmarks.data.sources import parse_json
from contextlab.errors import UserError
from contextlab.training import instructions

END = re.compile("\f\r?\n")
"""Ends a document inside a text file."""
INDEX = "index.jsonl"
"""An optional file about the documents of a folder, by the sha256 of their texts; itself no document."""
FORMS = tuple(form + packing for form in (".txt", ".jsonl") for packing in named_files.PACKINGS)
ABOUT = ("id", "title", "author", "source", "licence", "license")


@dataclasses.dataclass(frozen=True)
class TextPart:
    """A stretch of a document; whether it is an answer, whose tokens alone count where a document has any."""

    text: str
    answer: bool = False


@dataclasses.dataclass(frozen=True)
class TrainingText:
    """A text, and what is known about it.

    Attributes:
        name: its file and number there.
        parts: the whole text; or a context, and a prompt and an answer in turns.
        sha256: of the text in UTF-8.
        about: title, author, source and licence, from the folder's index or the line of a jsonl file.
    """

    name: str
    parts: tuple[TextPart, ...]
    sha256: str
    about: Mapping[str, Any]

    @property
    def text(self) -> str:
        """All parts, one after the other."""
        return "".join(part.text for part in self.parts)


@dataclasses.dataclass(frozen=True)
class CorpusSource:
    """Files of documents.

    Attributes:
        name: of the folder, the file, or the data set.
        files: by their path below the folder.
        index: the folder's index of its documents, by the sha256 of their texts.
        digests: sha256 of every file, the index included.
    """

    name: str
    files: Mapping[str, Path]
    index: Mapping[str, Mapping[str, Any]]
    digests: Mapping[str, str]

    def documents(self) -> Iterator[TrainingText]:
        """Every document that is not empty, in the order of the files.

        Raises:
            UserError: when a file is broken, not UTF-8, or holds lines of another form.
        """
        for name, path in self.files.items():
            if instructions.ENDING in path.name.lower():
                pool = instructions.read_pool(path.parent / instructions.POOL)
                for task, text in instructions.texts(path, named_files.text(path).split("\n"), pool):
                    sha256 = hashlib.sha256(text.encode()).hexdigest()
                    yield TrainingText(f"{name}#{task}", (TextPart(text),), sha256, self.index.get(sha256, {}))
                continue
            lines = ".jsonl" in Path(path.name.lower()).suffixes
            texts = _lines(path) if lines else (((TextPart(text),), {}) for text in END.split(named_files.text(path)))
            for number, (parts, about) in enumerate(texts):
                text = "".join(part.text for part in parts)
                if text.strip():
                    sha256 = hashlib.sha256(text.encode()).hexdigest()
                    yield TrainingText(f"{name}#{number}", parts, sha256, {**about, **self.index.get(sha256, {})})


def open_source(location: str | Path) -> CorpusSource:
    """The files of documents that a name stands for.

    Args:
        location: a folder, in which every file of a known form counts at any depth; one file; or `hub:NAME`, perhaps
            `hub:NAME@REVISION`.

    Raises:
        UserError: when there is no such folder or file, it holds no such file, or the data set cannot be had.
    """
    named = named_files.named_files(location, FORMS, "corpus", without=INDEX)
    index = named.folder / INDEX
    of_tasks = [path for path in named.files.values() if instructions.ENDING in path.name.lower()]
    pools = {path.parent / instructions.POOL for path in of_tasks}
    further = sorted(file for file in (index, *pools) if file.is_file())
    listed = {**named.files, **{file.relative_to(named.folder).as_posix(): file for file in further}}
    digests = {name: named_files.digest(file) for name, file in listed.items()}
    return CorpusSource(named.name, named.files, _index(index), digests)


def _lines(path: Path) -> Iterator[tuple[tuple[TextPart, ...], dict[str, Any]]]:
    """The texts of a jsonl file in parts, each with the other fields of its line."""
    for number, line in enumerate(named_files.text(path).split("\n"), start=1):
        if not line.strip():
            continue
        value = parse_json(line, path, number)
        try:
            parts = _parts(value)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UserError(
                f'Line {number} of {path} holds no text: write {{"text": "..."}} on every line, or {{"context": "...", '
                '"prompt": "...", "answer": "..."}.'
            ) from None
        yield parts, _about(value)


def _parts(value: Any) -> tuple[TextPart, ...]:
    """The text of a line; or a context, and after it the prompts and answers of the line, or of each of its `turns`.

    Raises:
        ValueError, KeyError, TypeError or AttributeError: for a line of another form, or an empty context or answer.
    """
    if isinstance(value, dict) and "text" in value:
        parts = [TextPart(value["text"])]
    else:
        parts = [TextPart(value["context"])]
        for turn in value.get("turns", [value]):
            parts += [TextPart(turn["prompt"]), TextPart(turn["answer"], answer=True)]
        if len(parts) == 1 or not all(part.text for part in parts if part.answer or part is parts[0]):
            raise ValueError
    for part in parts:
        # Not every string of JSON is one of characters.
        part.text.encode()
    return tuple(parts)


def _index(path: Path) -> dict[str, dict[str, Any]]:
    """The fields of an index, by sha256; other lines are skipped, for the index is not our file."""
    entries: dict[str, dict[str, Any]] = {}
    for line in named_files.text(path).splitlines() if path.is_file() else ():
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) and isinstance(value.get("sha256"), str):
            entries[value["sha256"]] = _about(value)
    return entries


def _about(value: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value[key] for key in ABOUT if isinstance(value.get(key), str)}
