"""The files of a run beside its tensors: JSON files that are written as a whole or not at all, and the curve."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from contextlab import files, locks, seals
from contextlab.errors import UserError
from contextlab.files import Journal


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


def writing(folder: Path) -> AbstractContextManager[None]:
    """Put what the operating system refuses into a sentence."""
    return files.writing(folder, "choose another --out, then run the same command again to resume")


@contextlib.contextmanager
def held(out: Path) -> Iterator[None]:
    """Hold a folder against other processes that would train into it; an empty one is removed when the block ends.

    Raises:
        UserError: when another one holds it, or it cannot be written.
    """
    with contextlib.ExitStack() as stack:
        with writing(out):
            refusal = f"Another process trains into {out}: wait for it, or choose another --out."
            stack.enter_context(locks.alone(out, refusal))
        yield


def curve(path: Path) -> list[dict[str, Any]]:
    """The lines of a curve, without an incomplete last one.

    Raises:
        UserError: when they are not what was written.
    """
    try:
        return seals.lines(seals.text(path))
    except (FileNotFoundError, seals.Damaged) as error:
        raise UserError(f"{path} cannot be read ({error}): put the intact file back, or train again.") from None


def ended(path: Path, card: Mapping[str, Any]) -> bool:
    """Whether a curve has the last validation of a card, which is its last line when a run has ended.

    Raises:
        UserError: as `curve`.
    """
    last = last_tokens(card)
    return path.exists() and any("validation" in line and line["tokens"] == last for line in curve(path))


def last_tokens(card: Mapping[str, Any]) -> int | None:
    """Tokens before the last validation of a card; None where it has none."""
    try:
        return int(card["curve"][-1]["tokens"])
    except (KeyError, IndexError, TypeError, ValueError):
        return None


def check_curve(path: Path, length: int, sha256: str | None) -> None:
    """Refuse a curve that is not what a checkpoint knows; one that is not there is begun again.

    Args:
        path: of the curve.
        length: bytes of it that the checkpoint knows.
        sha256: of these bytes; None where the checkpoint does not know it.

    Raises:
        UserError: when they differ.
    """
    if sha256 is not None and path.exists() and _sha256(path, length) != sha256:
        raise UserError(
            f"{path} changed since the last checkpoint: put the intact file back, or delete it, and the curve begins "
            "at the checkpoint."
        )


def _sha256(path: Path, length: int) -> str:
    with open(path, "rb") as file:
        return hashlib.sha256(file.read(length)).hexdigest()


class Curve:
    """The steps and validations of a run, one JSON object per line.

    Args:
        path: of the file; None keeps nothing, in processes that write none.
        length: bytes of it that a checkpoint knows of; later bytes of an interrupted run are cut off.
        sha256: of these bytes; None where the checkpoint does not know it.

    Raises:
        UserError: when it cannot be written, or is not what the checkpoint knows.
    """

    def __init__(self, path: Path | None, length: int = 0, sha256: str | None = None) -> None:
        self.path = path
        self._journal: Journal | None = None
        if path is not None:
            check_curve(path, length, sha256)
            with writing(path.parent):
                self._journal = Journal(path, length)

    @property
    def length(self) -> int:
        """Bytes that the file holds."""
        return 0 if self._journal is None else self._journal.length

    def append(self, line: Mapping[str, Any]) -> None:
        """Write one line, which the next checkpoint has on the disk."""
        if self._journal is not None:
            with writing(self._journal.path.parent):
                self._journal.write(seals.sealed(line, line=True).encode() + b"\n")

    def sha256(self) -> str | None:
        """Have the file on the disk, and return its sha256; None where there is none."""
        if self._journal is None:
            return None
        with writing(self._journal.path.parent):
            self._journal.sync()
        return files.sha256(self._journal.path)

    def lines(self) -> list[dict[str, Any]]:
        """All lines so far."""
        return [] if self.path is None else curve(self.path)

    def close(self) -> None:
        """Nothing is written after this."""
        if self._journal is not None:
            self._journal.close()
