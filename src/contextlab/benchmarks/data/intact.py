"""Checks which files of a data set exist, and whether they are complete, as published, and unchanged."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import Literal

from contextlab import packed
from contextlab.benchmarks.data import pg22_build
from contextlab.benchmarks.data.data_set import DataSet
from contextlab.benchmarks.data.fetch import SUMS, read_sums
from contextlab.benchmarks.data.sources import json_file, json_lines
from contextlab.errors import UserError

Condition = Literal["absent", "broken", "incomplete", "re-laid", "unverified", "intact", "complete"]


@dataclasses.dataclass(frozen=True)
class Report:
    """The state of a data set in one folder.

    Attributes:
        name: of the data set.
        state: absent: no file; broken: see `problems`; incomplete: see `missing`; re-laid: complete, but other data
            than published; unverified: readable, without a digest for every file; intact: unchanged since it was
            stored; complete: all as published.
        folder: its folder.
        files: number of files that loaders read.
        bytes: their size.
        verified: number of files with the published digest, or the digest recorded when they were stored.
        missing: patterns without a file.
        problems: one sentence each.
    """

    name: str
    state: Condition
    folder: str
    files: int = 0
    bytes: int = 0
    verified: int = 0
    missing: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def examine(dataset: DataSet, root: Path) -> Report:
    """Read every file of a data set below `root`.

    Compressed files are unpacked, JSON is parsed, and digests are compared with those of the catalogue, of a
    `SHA256SUMS` in the folder or in `root`, and of the manifest of a set that was built.
    """
    folder = root / dataset.folder
    matches = {pattern: _matches(folder, pattern) for pattern in dataset.files}
    files = sorted({path for paths in matches.values() for path in paths})
    if not files:
        return Report(dataset.name, "absent", str(folder))
    published = {packed.plain_name(r.path): r.digest for r in dataset.remotes if r.digest and r.unpack is None}
    noted = {root / name: sha256 for name, sha256 in read_sums(root / SUMS).items()}
    noted |= {folder / name: sha256 for name, sha256 in read_sums(folder / SUMS).items()}
    problems: list[str] = []
    original: list[bool] = []
    verified = 0
    for path in files:
        try:
            digests = _digests(path)
        except UserError as error:
            problems.append(str(error))
            continue
        as_noted = f"sha256:{noted[path]}" in digests if path in noted else None
        if as_noted is False:
            problems.append(f"{path} is not the file that {SUMS} lists: replace it with an intact copy.")
        digest = published.get(packed.plain_name(path.relative_to(folder).as_posix()))
        original += [digest in digests] if digest else []
        verified += as_noted or digest in digests
    if (folder / pg22_build.MANIFEST).is_file():
        differences = pg22_build.differences(folder)
        problems += differences
        verified = verified if differences else len(files)
    missing = tuple(pattern for pattern, paths in matches.items() if not paths)
    return Report(
        dataset.name,
        _state(problems, missing, original, len(files), verified),
        str(folder),
        len(files),
        sum(path.stat().st_size for path in files),
        verified,
        missing,
        tuple(problems),
    )


def _state(problems: list[str], missing: tuple[str, ...], original: list[bool], files: int, verified: int) -> Condition:
    if problems:
        return "broken"
    if not all(original):
        return "re-laid"
    if missing:
        return "incomplete"
    if len(original) == files:
        return "complete"
    return "intact" if verified == files else "unverified"


def _matches(folder: Path, pattern: str) -> list[Path]:
    return sorted(path for ending in ("", *packed.UNPACK) for path in folder.glob(pattern + ending) if path.is_file())


def _digests(path: Path) -> set[str]:
    """The digests of a file and of its unpacked content.

    Raises:
        UserError: when it cannot be unpacked, is empty, or is not valid JSON.
    """
    digests: set[str] = set()
    size = 0
    try:
        for unpacked in (False, True) if path.suffix in packed.UNPACK else (False,):
            hashes = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
            with packed.opened(path) if unpacked else open(path, "rb") as file:
                size = 0
                while block := file.read(2**20):
                    size += len(block)
                    for digest in hashes:
                        digest.update(block)
            digests |= {f"{digest.name}:{digest.hexdigest()}" for digest in hashes}
    except (OSError, packed.BrokenPack) as error:
        raise UserError(f"{path} cannot be read ({error}): replace it with an intact copy.") from None
    if not size:
        raise UserError(f"{path} is empty: replace it with an intact copy.")
    name = packed.plain_name(path.name)
    if name.endswith(".jsonl"):
        json_lines(path)
    elif name.endswith(".json"):
        json_file(path)
    return digests
