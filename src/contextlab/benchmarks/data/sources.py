"""Finding and reading the files of a data set."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from contextlab import files, locks, packed
from contextlab.benchmarks.task import Source
from contextlab.errors import UserError
from contextlab.paths import cache_dir

HUB_REPOSITORIES = {"chapterbreak": "simsun131/chapterbreak"}
HUB_TIMEOUT = 5
# A lone surrogate (half of a character), which JSON can encode and no tokenizer accepts.
SURROGATE = re.compile("[\ud800-\udfff]")


@dataclasses.dataclass(frozen=True)
class Location:
    """A file of a data set.

    Attributes:
        path: the file; None when there is none and the generated sample is used.
        source: the kind of its source.
        revision: the commit on the hub that it was downloaded from.
    """

    path: Path | None
    source: Source
    revision: str | None = None


def locate(dataset: str, file: str, data: Path | None) -> Location:
    """Find `<dataset>/<file>`, plain or packed (`.gz`, `.xz`): in `data`, else in the cache, else on the hub.

    `CONTEXTLAB_DATA` replaces `data` when that is None. When a data folder is named, only this folder is searched.

    Raises:
        UserError: when the named folder does not exist or lacks the file, or the disk is full.
    """
    named = named_root(data)
    if named:
        return Location(_in_folder(named, dataset, file), "local")
    target = cache_dir() / "data" / dataset / file
    cached = plain_or_packed(target)
    if cached is None and dataset in HUB_REPOSITORIES and _download(HUB_REPOSITORIES[dataset], target):
        cached = target
    if cached is None:
        return Location(None, "sample")
    revision = _revision(target, cached)
    return Location(cached, "hub", revision) if revision else Location(cached, "local")


def named_root(data: Path | None) -> Path | None:
    """The folder of all data sets that the user names: `data`, else that of `CONTEXTLAB_DATA`."""
    named = data or os.environ.get("CONTEXTLAB_DATA")
    return Path(named) if named else None


def data_root(data: Path | None) -> Path:
    """The folder of all data sets: the named one, else the cache's.

    Raises:
        UserError: when the named folder does not exist.
    """
    named = named_root(data)
    if named and not named.is_dir():
        raise UserError(f"There is no folder {named}: name a data folder that exists.")
    return named or cache_dir() / "data"


def locate_folder(dataset: str, folder: str, data: Path | None) -> Location:
    """Find the folder `<dataset>/<folder>`: in `data` (or `CONTEXTLAB_DATA`), else in the cache.

    Raises:
        UserError: when a data folder is named and lacks it.
    """
    named = named_root(data)
    path = (named or cache_dir() / "data") / dataset / folder
    if named and not path.is_dir():
        raise UserError(f"There is no folder {path}: name a data folder that holds {dataset}/{folder}.")
    return Location(path, "local") if path.is_dir() else Location(None, "sample")


def plain_or_packed(path: Path) -> Path | None:
    """The path itself, or the file of that name that is packed otherwise or not at all; None when there is none."""
    plain = packed.plain_name(path.name)
    others = (path.with_name(plain + ending) for ending in ("", *packed.UNPACK))
    return next((candidate for candidate in (path, *others) if candidate.is_file()), None)


def read(path: Path, encoding: str | None = None) -> tuple[str, str]:
    """The text of a file, unpacked when its name ends in `.gz` or `.xz`, and the sha256 of the file on disk.

    Args:
        path: the file.
        encoding: of a file that is not UTF-8; such a file is an error when None.

    Raises:
        UserError: when the file is missing or broken.
    """
    try:
        raw = path.read_bytes()
        content = packed.content(path) if path.suffix in packed.UNPACK else raw
    except (OSError, packed.BrokenPack, ValueError) as error:
        raise _unreadable(path, error) from None
    sha256 = hashlib.sha256(raw).hexdigest()
    try:
        return content.decode(), sha256
    except UnicodeDecodeError as error:
        if encoding is not None:
            return content.decode(encoding), sha256
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(f"Line {line} of {path} is not UTF-8: replace it with an intact copy, or convert it.") from None


def lines(path: Path) -> Iterator[tuple[str, bytes]]:
    """The lines of a file of any size, unpacked if its name ends in `.gz` or `.xz`, each with its line number in words.

    Raises:
        UserError: when the file is missing or broken, possibly after some lines.
    """
    try:
        with packed.opened(path) as file:
            for number, line in enumerate(file, start=1):
                yield f"Line {number} of {path}", line.rstrip(b"\n")
    except (OSError, packed.BrokenPack) as error:
        raise _unreadable(path, error) from None


def json_lines(path: Path) -> tuple[list[tuple[str, Any]], str]:
    """The JSON value of every line of a UTF-8 file, each with its line number in words, and the file's sha256.

    Raises:
        UserError: when the file is missing, broken or without any value.
    """
    text, sha256 = read(path)
    numbered = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if not numbered:
        raise UserError(f"{path} is empty: replace it with an intact copy.")
    return [(f"Line {number} of {path}", parse_json(line, path, number)) for number, line in numbered], sha256


def parse_json(text: str, path: Path, first_line: int = 1) -> Any:
    """Parse JSON that begins on a line of `path`.

    Raises:
        UserError: naming the file and the line that is broken.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        line, reason = first_line, str(error)
        if isinstance(error, json.JSONDecodeError):
            line, reason = first_line + error.lineno - 1, error.msg
        raise UserError(
            f"Line {line} of {path} is not valid JSON ({reason}): replace it with an intact copy."
        ) from None


def json_file(path: Path) -> tuple[Any, str]:
    """The JSON value of a UTF-8 file, and the file's sha256.

    Raises:
        UserError: when the file is missing or broken, naming the line.
    """
    text, sha256 = read(path)
    return parse_json(text, path), sha256


def field(record: Any, name: str, kind: type, where: str) -> Any:
    """A field of a JSON object; `where` names the file and the example in errors.

    Raises:
        UserError: when the field is missing, empty or of another type.
    """
    value = record.get(name) if isinstance(record, dict) else None
    if not isinstance(value, kind) or not value or (isinstance(value, str) and SURROGATE.search(value)):
        raise UserError(f"{where} has no {kind.__name__} in its field '{name}': replace the file with an intact copy.")
    return value


def texts(record: Any, name: str, where: str) -> tuple[str, ...]:
    """A field of a JSON object that is a list of texts, none of them empty.

    Raises:
        UserError: when the field is missing, empty or holds anything else.
    """
    return tuple(field({name: item}, name, str, where) for item in field(record, name, list, where))


def shuffled(identity: str, true: str, others: Sequence[str]) -> tuple[tuple[str, ...], int]:
    """The candidates in an order that depends only on the example's id, and the index of the true one."""
    texts = (true, *others)
    order = sorted(range(len(texts)), key=lambda i: hashlib.sha256(f"{identity}/{i}".encode()).digest())
    return tuple(texts[i] for i in order), order.index(0)


def _unreadable(path: Path, error: Exception) -> UserError:
    """The sentence for a file of a data set that is missing or broken."""
    if isinstance(error, FileNotFoundError):
        return UserError(f"There is no file {path}: put it there, or name another folder.")
    return UserError(f"{path} cannot be read ({error}): replace it with an intact copy.")


def _in_folder(root: Path, dataset: str, file: str) -> Path:
    for folder in (root, root / dataset):
        if not folder.is_dir():
            raise UserError(f"There is no folder {folder}: name a data folder that holds {dataset}/{file}.")
    path = plain_or_packed(root / dataset / file)
    if path is None:
        raise UserError(f"There is no file {root / dataset / file}[.gz|.xz]: name a data folder that holds it.")
    return path


def note_revision(target: Path, commit: str, sha256: str) -> None:
    """Record the commit on the hub and the digest of a file in a file beside it."""
    files.write(_revision_file(target), f"{commit} {sha256}\n")


def _revision(target: Path, path: Path) -> str | None:
    """The recorded commit of a file; None without a record, or when the file has changed since."""
    if not _revision_file(target).exists():
        return None
    commit, _, sha256 = _revision_file(target).read_text().strip().partition(" ")
    return commit if hashlib.sha256(path.read_bytes()).hexdigest() == sha256 else None


def _revision_file(target: Path) -> Path:
    return target.with_name(target.name + ".revision")


def _download(repository: str, target: Path) -> bool:
    """Download the newest revision of a file; False when this fails for any reason.

    No fixed revision is known to be the published one, so the commit is resolved first and recorded beside the file.
    """
    import huggingface_hub as hub

    if hub.is_offline_mode():
        return False
    try:
        url = hub.hf_hub_url(repository, target.name, repo_type="dataset")
        commit = hub.get_hf_file_metadata(url, timeout=HUB_TIMEOUT).commit_hash
        if commit is None:
            return False
        target.parent.mkdir(parents=True, exist_ok=True)
        with locks.held(f"data {target}"), tempfile.TemporaryDirectory(dir=target.parent) as folder:
            if target.is_file():  # downloaded by the process that held the lock before
                return True
            path = hub.hf_hub_download(
                repository,
                target.name,
                repo_type="dataset",
                revision=commit,
                local_dir=folder,
                etag_timeout=HUB_TIMEOUT,
            )
            note_revision(target, commit, hashlib.sha256(Path(path).read_bytes()).hexdigest())
            os.replace(path, target)
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise UserError(f"The disk is full: make room for {target} or set CONTEXTLAB_CACHE.") from None
        return False
    return True
