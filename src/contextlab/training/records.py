"""What a run leaves beside its tensors: JSON files that are there as a whole or not at all, and the curve."""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from contextlab import files, seals
from contextlab.errors import UserError

LOCK = ".lock"


def write(path: Path, value: Mapping[str, Any]) -> None:
    """Write a sealed JSON object in place of an earlier one.

    Raises:
        UserError: when it cannot be written.
    """
    with writing(path.parent):
        seals.write(path, value)


def read(path: Path) -> dict[str, Any] | None:
    """The JSON object of a file; None when there is no such file.

    Raises:
        UserError: when it holds something else, or changed since it was written.
    """
    try:
        return seals.opened(seals.text(path))
    except FileNotFoundError:
        return None
    except seals.Damaged as damaged:
        raise UserError(f"{path} cannot be read ({damaged}): delete it, or choose another --out.") from None


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Put what the operating system refuses into a sentence."""
    try:
        yield
    except OSError as error:
        otherwise = "choose another --out, then run the same command again to resume"
        raise files.unwritable(folder, error, otherwise) from error


@contextlib.contextmanager
def held(out: Path) -> Iterator[None]:
    """Hold a folder against other processes that would train into it.

    Raises:
        UserError: when another one holds it, or it cannot be written.
    """
    with contextlib.ExitStack() as stack:
        with writing(out):
            out.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(open(out / LOCK, "ab"))
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"Another process trains into {out}: wait for it, or choose another --out.") from None
        try:
            yield
        finally:
            _discard(out)


def _discard(out: Path) -> None:
    """Remove a folder that holds nothing but its lock, so that a refused command leaves nothing behind."""
    if [one.name for one in out.iterdir()] == [LOCK]:
        (out / LOCK).unlink()
        out.rmdir()


class Curve:
    """The steps and validations of a run, one JSON object per line.

    Args:
        path: of the file; None keeps nothing, in processes that write none.
        length: bytes of it that a checkpoint knows of; what an interrupted run wrote behind them is cut off.
    """

    def __init__(self, path: Path | None, length: int = 0) -> None:
        self.path = path
        self.length = 0
        if path is not None:
            with writing(path.parent):
                self._file = open(path, "ab")  # noqa: SIM115
                self.length = min(length, path.stat().st_size)
                self._file.truncate(self.length)

    def append(self, line: Mapping[str, Any]) -> None:
        """Write one line."""
        if self.path is not None:
            text = json.dumps(line).encode() + b"\n"
            with writing(self.path.parent):
                self._file.write(text)
                self._file.flush()
            self.length += len(text)

    def lines(self) -> list[dict[str, Any]]:
        """All lines so far."""
        return [] if self.path is None else [json.loads(line) for line in self.path.read_bytes().splitlines()]

    def close(self) -> None:
        """Nothing is written after this."""
        if self.path is not None:
            self._file.close()
