"""Locks between processes that would write the same files of the cache."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import sys
from collections.abc import Iterator

from contextlab.errors import UserError
from contextlab.paths import cache_dir


@contextlib.contextmanager
def held(what: str) -> Iterator[None]:
    """Wait for the lock of a name and hold it; the operating system releases it when the process ends.

    Args:
        what: name of the lock, the same in every process.

    Raises:
        UserError: when the cache folder cannot be written.
    """
    folder = cache_dir() / "locks"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open(folder / hashlib.sha256(what.encode()).hexdigest()[:16], "ab")  # noqa: SIM115
    except OSError as error:
        raise UserError(
            f"The cache folder {folder} cannot be written ({error.strerror}): set CONTEXTLAB_CACHE."
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if sys.stderr.isatty():
                print("Waiting for another process that fetches the same ...", file=sys.stderr)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
