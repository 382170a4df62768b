"""Unpacking archives from other people: plain files only, inside one folder, within limits, all of them or none."""

from __future__ import annotations

import lzma
import struct
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from contextlab import files
from contextlab.errors import UserError

MOST_BYTES = 4 * 2**30
MOST_FILES = 100_000
# An encrypted member or an unknown compression raises RuntimeError, a damaged header any of the others.
BROKEN = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error),
    *(ArithmeticError, EOFError, LookupError, RuntimeError, ValueError),
)


def unpack(
    archive: Path, folder: Path, leading: str = "", *, most_bytes: int = MOST_BYTES, most_files: int = MOST_FILES
) -> list[str]:
    """Unpack a tar or zip file into `folder` and return the paths of its files there.

    Args:
        archive: its format is recognised by its content.
        folder: created when missing; files of the same path are replaced.
        leading: folder that contains all members and is removed from their paths.
        most_bytes: of all files together, unpacked.
        most_files: members of the archive.

    Raises:
        UserError: when the archive is broken or too large, or holds links, devices, a file twice, a file without a
            name, or a path that cannot be created in `folder`; nothing is unpacked then.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".unpacking-") as scratch:
        paths: dict[str, None] = {}
        bytes_left = most_bytes
        try:
            for number, (name, size, stream) in enumerate(_members(archive)):
                bytes_left -= size
                if bytes_left < 0 or number >= most_files:
                    raise UserError(
                        f"{archive} unpacks to more than {most_bytes} bytes or {most_files} files: refused."
                    )
                path = _inside(name, leading, archive)
                if stream is None:
                    continue
                _refuse_unless(path is not None, name, archive)
                assert path is not None
                if path in paths:
                    raise UserError(f"{archive} holds {name!r} twice: refused.")
                target = Path(scratch, path)
                target.parent.mkdir(parents=True, exist_ok=True)
                with stream:
                    files.copy(stream, target)
                paths[path] = None
        except (*BROKEN, OSError) as error:
            raise UserError(f"{archive} cannot be unpacked ({error}): fetch it again.") from None
        for path in paths:
            target, *parents = folder / path, *(folder / above for above in PurePosixPath(path).parents)
            obstacles = [*([target] if target.is_dir() else []), *(p for p in parents if p.exists() and not p.is_dir())]
            if obstacles:
                raise UserError(f"{obstacles[0]} is in the way of {path!r} of {archive}: move it away.")
        for path in paths:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            Path(scratch, path).replace(folder / path)
    return list(paths)


def _members(archive: Path) -> Iterator[tuple[str, int, IO[bytes] | None]]:
    """Name, size and content of every member; folders have no content."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as packed:
            for entry in packed.infolist():
                kind = entry.external_attr >> 28
                _refuse_unless(kind in (0, 4, 8) and entry.filename != "", entry.filename, archive)
                yield entry.filename, entry.file_size, None if entry.is_dir() else packed.open(entry)
        return
    with tarfile.open(archive) as tape:
        for member in tape:
            _refuse_unless(member.isfile() or member.isdir(), member.name, archive)
            yield member.name, member.size, tape.extractfile(member) if member.isfile() else None


def _inside(name: str, leading: str, archive: Path) -> str | None:
    """The path below the folder; None for the leading folder itself."""
    path = PurePosixPath(name.replace("\\", "/"))
    escapes = path.is_absolute() or ".." in path.parts or ":" in name or "\0" in name
    _refuse_unless(not escapes, name, archive)
    if leading and path.parts[:1] == (leading,):
        path = PurePosixPath(*path.parts[1:])
    return str(path) if path.parts else None


def _refuse_unless(harmless: bool, name: str, archive: Path) -> None:
    if not harmless:
        raise UserError(f"{archive} holds {name!r}, which is no plain file inside one folder: refused.")
