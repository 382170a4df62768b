"""Locks between processes, and between threads of one: a folder held by one alone, and a turn that is waited for.

The operating system releases a lock when its process ends, however it ends.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import stat
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

from contextlab import files
from contextlab.errors import UserError
from contextlab.paths import cache_dir

NAME = ".lock"
WITHOUT = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP}
"""Errors of file systems that have no locks."""


@contextlib.contextmanager
def alone(folder: Path, refusal: str) -> Iterator[None]:
    """Hold a folder against other processes and threads, without waiting.

    It is created where it is missing. When the block ends its lock vanishes, and the folder too if it is empty, so that
    a refused command leaves nothing.

    Args:
        folder: to hold.
        refusal: the sentence for a folder that another one holds.

    Raises:
        UserError: when another one holds it, or its file system has no locks.
        OSError: when it cannot be written.
    """
    lock, mine = FileLock(folder / NAME), None
    try:
        while mine is None:
            # Another one may remove the folder between any two of these steps.
            _create(folder)
            with contextlib.suppress(FileNotFoundError, FileExistsError):
                mine = _acquired(lock, f"{folder} is on a file system without locks: choose another folder with --out.")
        if not mine:
            raise UserError(refusal)
        try:
            yield
        finally:
            # Who has opened the file and waits for it sees that it is gone, and makes a new one.
            with contextlib.suppress(OSError):
                (folder / NAME).unlink()
            lock.release()
    finally:
        with contextlib.suppress(OSError):
            folder.rmdir()


def is_held(folder: Path) -> bool:
    """Whether a process or thread holds a folder, as `alone` does."""
    lock = FileLock(folder / NAME)
    if not (folder / NAME).exists():
        return False
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return True
    except OSError:
        return False
    lock.release()
    return False


@contextlib.contextmanager
def held(what: str) -> Iterator[None]:
    """Wait for the lock of a name in the cache, and hold it.

    Args:
        what: name of the lock, the same in every process.

    Raises:
        UserError: when the cache folder cannot be written, or its file system has no locks.
    """
    folder = cache_dir() / "locks"
    with files.writing(folder, "set CONTEXTLAB_CACHE"):
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / hashlib.sha256(what.encode()).hexdigest()[:16])
        if not _acquired(lock, f"{folder} is on a file system without locks: set CONTEXTLAB_CACHE."):
            if sys.stderr.isatty():
                print("Waiting for another process that fetches the same ...", file=sys.stderr)
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _create(folder: Path) -> None:
    """Create a folder where it is missing; it may be removed again meanwhile.

    Raises:
        OSError: when it cannot be created, or is no folder.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        # `mkdir` raises it too for a folder that vanishes before `mkdir` has looked whether it is one.
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISDIR(folder.lstat().st_mode):
                raise


def _acquired(lock: BaseFileLock, without: str) -> bool:
    """Whether a lock was free, and is held now.

    Raises:
        UserError: with the sentence `without` when the file system has no locks.
    """
    try:
        # A lock that only looks whether a file exists would outlive a killed process.
        with warnings.catch_warnings(action="ignore"):
            lock.acquire(blocking=False)
    except Timeout:
        return False
    except NotImplementedError:
        raise UserError(without) from None
    except OSError as error:
        if error.errno in WITHOUT:
            raise UserError(without) from error
        raise
    if isinstance(lock, SoftFileLock):
        lock.release()
        raise UserError(without)
    return True
