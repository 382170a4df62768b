"""Files that are written: as a whole or not at all, or line by line at their end; nothing else here writes files."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from contextlab.errors import UserError

PARTIAL = ".partial"
"""Ends the names of files, and begins those of folders, that are being written."""
ABANDONED = 3600
"""Seconds after which nobody is writing a partial folder any more."""


def slug(text: str) -> str:
    """A text in lower-case letters, digits and hyphens, for the name of a file or of a label."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def sha256(path: Path) -> str:
    """sha256 of a file, hexadecimal.

    Raises:
        OSError: when it cannot be read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digests_of(settings: Any) -> dict[str, str]:
    """sha256 of the content of every path in a configuration, at any depth; of a folder by the names of its files.

    Raises:
        UserError: when a file cannot be read.
    """
    if isinstance(settings, Path):
        below = sorted(path for path in settings.rglob("*") if path.is_file()) if settings.is_dir() else [settings]
        return {str(path): _digest(path) for path in below}
    inner = settings.values() if isinstance(settings, Mapping) else settings
    if isinstance(inner, str) or not isinstance(inner, Iterable):
        return {}
    return {name: sha256 for item in inner for name, sha256 in digests_of(item).items()}


def _digest(path: Path) -> str:
    try:
        return sha256(path)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): give a file that is there.") from error


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file to write, which takes the place of `path` when the block ends, and vanishes when the block fails.

    It is on the disk then, with the permissions of any new file. What is no plain file (a pipe, a device) is written
    itself.

    Args:
        path: in a folder that exists.

    Raises:
        OSError: when it cannot be written.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        yield target
        return
    fresh = target.with_name(f".{secrets.token_hex(8)}{PARTIAL}")
    try:
        fresh.touch(exist_ok=False)
        yield fresh
        _sync(fresh)
        os.replace(fresh, target)
    except BaseException:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise
    _sync(target.parent)


def copy(stream: IO[bytes], path: Path) -> None:
    """Write what is left of a stream in place of an earlier file.

    Raises:
        OSError: when it cannot be written.
    """
    with replacing(path) as fresh, open(fresh, "wb") as file:
        shutil.copyfileobj(stream, file)


def write(path: Path, content: str | bytes | Iterable[bytes | memoryview]) -> None:
    """Write a file, text as UTF-8, in place of an earlier one.

    Args:
        path: of the file.
        content: all of it, or its parts.

    Raises:
        OSError: when it cannot be written.
    """
    with replacing(path) as fresh, open(fresh, "wb") as file:
        content = content.encode() if isinstance(content, str) else content
        file.writelines([content] if isinstance(content, bytes) else content)


@contextlib.contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """An empty folder to fill, which gets its name when the block ends, and vanishes when the block fails.

    Args:
        target: its name, which nothing has yet; folders above it are created.

    Raises:
        OSError: when it cannot be written.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    sweep(target.parent)
    fresh = target.with_name(f"{PARTIAL}-{secrets.token_hex(8)}")
    try:
        fresh.mkdir()
        yield fresh
        for path in (*fresh.rglob("*"), fresh):
            _sync(path)
        rename(fresh, target)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise


def walk(top: Path | str) -> Iterator[tuple[str, list[str], list[str]]]:
    """As `os.walk`, also through symbolic links; every folder once."""
    visited: set[str] = set()
    for directory, folders, names in os.walk(top, followlinks=True):
        real = os.path.realpath(directory)
        if real in visited:
            folders.clear()
            continue
        visited.add(real)
        yield directory, folders, names


def rename(path: Path, target: Path) -> None:
    """Give a file or folder another name in its folder, on the disk too.

    Raises:
        OSError: when that is not possible.
    """
    path.replace(target)
    _sync(target.parent)


def sweep(folder: Path, age: float = ABANDONED) -> None:
    """Remove partial folders that killed processes have left, those of at least an age in seconds."""
    for partial in folder.glob(f"{PARTIAL}-*"):
        with contextlib.suppress(OSError):
            if time.time() - partial.stat().st_mtime >= age:
                shutil.rmtree(partial, ignore_errors=True)


class Journal:
    """A file that grows at its end.

    Args:
        path: of the file, in a folder that exists.
        length: bytes to keep of what it holds; all of them when None.

    Attributes:
        length: bytes that it holds.

    Raises:
        OSError: when it cannot be written.
    """

    def __init__(self, path: Path, length: int | None = None) -> None:
        self.path = path
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115
        self.length = os.fstat(self._file.fileno()).st_size
        if length is not None and length < self.length:
            self._file.truncate(length)
            self.length = length
        self._synced = self.length

    def write(self, content: bytes) -> None:
        """Add bytes, which may be lost when the machine stops before `append` or `close`."""
        rest = memoryview(content)
        # On a full disk a write may be incomplete without an error.
        while rest:
            count = self._file.write(rest)
            rest = rest[count:]
            self.length += count

    def append(self, content: bytes) -> None:
        """Add bytes, which are on the disk when this returns."""
        self.write(content)
        self.sync()

    def sync(self) -> None:
        """Have all that was added on the disk."""
        if self._synced < self.length:
            os.fsync(self._file.fileno())
            self._synced = self.length

    def close(self) -> None:
        """Nothing is added after this."""
        if self._file.closed:
            return
        with self._file:
            self.sync()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def reason(error: OSError) -> str:
    """What the operating system says, in small letters."""
    return (error.strerror or str(error)).partition("\n")[0].lower()


def unwritable(path: Path | str, error: OSError, otherwise: str) -> UserError:
    """The sentence for a file or folder that cannot be written: more room helps only where the disk is full.

    Args:
        path: of it.
        error: of the operating system.
        otherwise: what helps in any case, as `choose another folder with --out`.
    """
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return UserError(f"{path} cannot be written ({reason(error)}): {'make room there or ' if full else ''}{otherwise}.")


@contextlib.contextmanager
def writing(path: Path | str, otherwise: str) -> Iterator[None]:
    """Put what the operating system refuses inside of a block into the sentence of `unwritable`.

    Raises:
        UserError: when something cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise unwritable(path, error, otherwise) from error


def _sync(path: Path) -> None:
    """Have the content of a file, or the names in a folder, on the disk; not every system can do it for folders."""
    folder = path.is_dir()
    with contextlib.suppress(OSError) if folder else contextlib.nullcontext():
        number = os.open(path, os.O_RDONLY if folder else os.O_RDWR)
        try:
            os.fsync(number)
        finally:
            os.close(number)
