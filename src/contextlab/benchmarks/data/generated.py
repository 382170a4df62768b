"""Generated readings, kept with their digest: made once for a tokenizer, and the same for everybody afterwards."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from contextlab import files, locks, packed
from contextlab.benchmarks.examples import Question, Reading
from contextlab.benchmarks.task import Dataset
from contextlab.errors import UserError
from contextlab.paths import cache_dir

Settings = Mapping[str, Any]
"""All that generated texts depend on, as JSON values: task, split, settings, seed, digest of the tokenizer."""


@dataclasses.dataclass(frozen=True)
class GeneratedFile:
    """A file of generated readings.

    Attributes:
        path: of the file.
        settings: what it was made with.
        sha256: of the readings, as they were written.
        problem: what is wrong with it, one sentence; "" where it is intact.
    """

    path: Path
    settings: Settings
    sha256: str
    problem: str = ""


class ReadingGenerator(ABC):
    """Makes readings; its module, and the modules that it lists, are part of what the texts depend on."""

    modules: tuple[str, ...] = ()

    @abstractmethod
    def readings(self) -> Iterable[Reading]:
        """All readings."""


def folder() -> Path:
    """The folder of all generated files; it is not created."""
    return cache_dir() / "generated"


def dataset(settings: Settings, generator: ReadingGenerator, note: str) -> Dataset:
    """The stored readings of these settings, which are made and stored where there are none.

    Args:
        settings: `task` among them.
        generator: of the readings.
        note: of the data set.

    Raises:
        UserError: when the stored file is damaged or cannot be written.
    """
    full = {**settings, "code": _code((type(generator).__module__, *generator.modules))}
    name = hashlib.sha256(json.dumps(full, sort_keys=True).encode()).hexdigest()[:16]
    path = folder() / f"{settings['task']}-{name}.jsonl.gz"
    with locks.held(f"generated {path}"):
        if not path.is_file():
            _write(path, full, generator.readings())
    stored, lines = _read(path)
    if stored.problem:
        raise UserError(f"{stored.problem}: delete the file, and it is made again.")
    return Dataset(tuple(map(_reading, lines)), "sample", stored.sha256, note)


def examined() -> list[GeneratedFile]:
    """Every stored file, compared with its digest."""
    return [_read(path)[0] for path in sorted(folder().glob("*.jsonl.gz"))]


def _code(modules: Iterable[str]) -> str:
    """The digest of the source of modules."""
    digest = hashlib.sha256()
    for name in modules:
        source = sys.modules[name].__file__
        digest.update(Path(source).read_bytes() if source else b"")
    return digest.hexdigest()


def _write(path: Path, settings: Settings, readings: Iterable[Reading]) -> None:
    lines = [json.dumps(dataclasses.asdict(reading)) for reading in readings]
    head = json.dumps({**settings, "sha256": _digest(lines)})
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write(path, gzip.compress("\n".join([head, *lines]).encode(), mtime=0))
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}): make room, or set CONTEXTLAB_CACHE.") from None


def _read(path: Path) -> tuple[GeneratedFile, list[str]]:
    try:
        head, *lines = packed.content(path).decode().split("\n")
        settings: dict[str, Any] = json.loads(head)
        sha256 = str(settings.pop("sha256"))
    except (OSError, packed.BrokenPack, ValueError, KeyError) as error:
        return GeneratedFile(path, {}, "", f"{path} cannot be read ({error})"), []
    problem = "" if _digest(lines) == sha256 else f"{path} has other contents than its digest says"
    return GeneratedFile(path, settings, sha256, problem), lines


def _digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _reading(line: str) -> Reading:
    record = json.loads(line)
    questions, shown = (tuple(map(_question, record.pop(name))) for name in ("questions", "shown"))
    return Reading(**record, questions=questions, shown=shown)


def _question(record: dict[str, Any]) -> Question:
    answers, options = (tuple(record.pop(name)) for name in ("answers", "options"))
    return Question(**record, answers=answers, options=options)
