"""Packed files, which are unpacked up to a limit: a few kilobytes may hold more than a machine has memory for.

Equal contents are packed to equal bytes: nothing of the time or the name goes into them.
"""

from __future__ import annotations

import gzip
import io
import lzma
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from contextlab.errors import UserError

SETTING = "CONTEXTLAB_MOST_UNPACKED"
"""Environment variable: the most MiB that a packed file may hold."""
ANY_SIZE, TIMES, MOST = 64 * 2**20, 100, 4 * 2**30
"""A packed file may hold 64 MiB, or a hundred times its size up to 4 GiB; texts hold three to ten times theirs."""


UNPACK: dict[str, Callable[[Path], Any]] = {".gz": gzip.open, ".xz": lzma.open}


def plain_name(name: str) -> str:
    """The name of a file without the ending that says how it is packed."""
    stem, dot, ending = name.rpartition(".")
    return stem if dot + ending in UNPACK else name


class BrokenPack(Exception):
    """A packed file that cannot be unpacked; the text says why."""


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """The content of a file, unpacked when its name ends in `.gz` or `.xz`.

    Raises:
        OSError: when it cannot be read.
        BrokenPack: when it cannot be unpacked, perhaps after some of it was read.
        UserError: when it holds more than it may.
    """
    unpack = UNPACK.get(path.suffix.lower())
    if unpack is None:
        with open(path, "rb") as plain:
            yield plain
        return
    try:
        with unpack(path) as content:
            yield cast(IO[bytes], io.BufferedReader(_Limited(content, path, limit(path))))
    except (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
        raise BrokenPack(str(error).partition("\n")[0].lower()) from None


def content(path: Path) -> bytes:
    """All that a file holds, unpacked.

    Raises:
        OSError, BrokenPack, UserError: as `opened`.
    """
    with opened(path) as file:
        return file.read()


def packed(content: bytes) -> bytes:
    """What a file with this content holds whose name ends in `.xz`; `unpacked` reads it."""
    return lzma.compress(content, preset=lzma.PRESET_EXTREME | lzma.PRESET_DEFAULT)


def unpacked(path: Path) -> bytes:
    """The content of a file that holds what `packed` gave, and nothing after it.

    Raises:
        OSError: when it cannot be read.
        BrokenPack: when it cannot be unpacked, or holds more.
        UserError: when it holds more than it may.
    """
    whole, most, reader = path.read_bytes(), limit(path), lzma.LZMADecompressor(lzma.FORMAT_XZ)
    try:
        content = reader.decompress(whole, max_length=most + 1)
    except lzma.LZMAError as error:
        raise BrokenPack(str(error).partition("\n")[0].lower()) from None
    if len(content) > most:
        raise _too_large(path, most)
    if not reader.eof or reader.unused_data:
        raise BrokenPack("it goes on after its end" if reader.eof else "its end is missing")
    return content


def limit(path: Path) -> int:
    """The most bytes that a packed file may hold.

    Raises:
        UserError: when the environment names no number.
    """
    named = os.environ.get(SETTING)
    if named is None:
        return min(max(ANY_SIZE, TIMES * path.stat().st_size), MOST)
    if not named.isdecimal():
        raise UserError(f"{SETTING} is {named!r}: set it to a number of MiB, or leave it out.")
    return int(named) * 2**20


def _too_large(path: Path, most: int) -> UserError:
    size = most / 2**20
    return UserError(f"{path} unpacks to more than {size:,.0f} MiB: if that is right, set {SETTING} to its MiB.")


class _Limited(io.RawIOBase):
    """A stream that refuses to give more than a number of bytes."""

    def __init__(self, content: Any, path: Path, most: int) -> None:
        self.content, self.path, self.most, self.left = content, path, most, most

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count: int = self.content.readinto(buffer)
        self.left -= count
        if self.left < 0:
            raise _too_large(self.path, self.most)
        return count
