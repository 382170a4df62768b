"""Files that a user names: one file, the files of a folder, or those of a data set on the hub."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path

import huggingface_hub

from contextlab import files, packed
from contextlab.errors import UserError, short

HUB = "hub:"
PACKINGS = ("", ".gz", ".xz")


@dataclasses.dataclass(frozen=True)
class NamedFiles:
    """Files below a folder.

    Attributes:
        name: of the file, the folder, or the data set.
        folder: that they are in.
        files: by their path below the folder, in the order of the paths.
        left_out: paths of what else a folder holds: files of another kind, and links that lead to no file.
    """

    name: str
    folder: Path
    files: Mapping[str, Path]
    left_out: tuple[str, ...] = ()


def named_files(location: str | Path, endings: tuple[str, ...], kind: str, without: str = "") -> NamedFiles:
    """The files that a name stands for.

    Args:
        location: a folder, in which every file with one of the endings counts at any depth; one file; or `hub:NAME`,
            perhaps `hub:NAME@REVISION`.
        endings: of names of files in small letters, with their packings; names may have capitals.
        kind: what is read, in errors.
        without: the name of files that are left out.

    Raises:
        UserError: when there is no such folder or file, it holds no such file or one that cannot be looked at, or the
            data set cannot be had.
    """
    hub = str(location).startswith(HUB)
    path = _fetched(str(location).removeprefix(HUB), endings) if hub else Path(location).expanduser()
    if not path.exists():
        raise UserError(f"There is no {kind} {path}: name a folder or file, or hub:NAME.")
    try:
        below = sorted(_files_below(path)) if path.is_dir() else [path]
    except OSError as error:
        raise unreadable(Path(error.filename or path), error) from error
    if path.is_file() and not has_ending(path, endings):
        raise UserError(f"{path} has no known ending: save it as {', '.join(endings)}.")
    folder = path if path.is_dir() else path.parent
    paths = {file.relative_to(folder).as_posix(): file for file in below if file.name != without}
    chosen = {name: file for name, file in paths.items() if has_ending(file, endings) and file.is_file()}
    if not chosen:
        raise UserError(f"{path} holds no such files: give files that end in {', '.join(endings)}.")
    # Of a data set on the hub only what is read is fetched.
    left_out = () if hub else tuple(name for name in paths if name not in chosen)
    return NamedFiles(str(location) if hub else path.resolve().name, folder, chosen, left_out)


def has_ending(path: Path, endings: tuple[str, ...]) -> bool:
    """Whether a file's name has one of some endings, in small letters or capitals."""
    return path.name.lower().endswith(endings)


def _files_below(folder: Path) -> Iterator[Path]:
    """The files and links of a folder, without what is hidden: programs keep copies of files there."""
    for file in folder.rglob("*"):
        there = file.is_file() or file.is_symlink()
        if there and not any(part.startswith(".") for part in file.relative_to(folder).parts):
            yield file


def content(path: Path) -> bytes:
    """The content of a file, unpacked.

    Raises:
        UserError: when it cannot be read.
    """
    try:
        return packed.content(path)
    except (OSError, packed.BrokenPack) as error:
        raise unreadable(path, error) from error


def text(path: Path) -> str:
    """The text of a file in UTF-8, unpacked.

    Raises:
        UserError: when it cannot be read, or is not UTF-8.
    """
    try:
        return content(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 (byte {error.start}): convert it, or take it out.") from None


def digest(path: Path) -> str:
    """sha256 of a file as it is on the disk.

    Raises:
        UserError: when it cannot be read.
    """
    try:
        return files.sha256(path)
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: Exception) -> UserError:
    """The sentence for a file that cannot be read or unpacked."""
    reason = getattr(error, "strerror", None) or str(error)
    return UserError(f"{path} cannot be read ({reason}): give an intact file, or take it out.")


def _fetched(name: str, endings: tuple[str, ...]) -> Path:
    repository, _, revision = name.partition("@")
    patterns = [f"*{ending}" for ending in endings]
    try:
        return Path(
            huggingface_hub.snapshot_download(
                repository, repo_type="dataset", revision=revision or None, allow_patterns=patterns
            )
        )
    except Exception as error:  # the hub, the network and the name may fail in many ways
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise UserError(
            f"The data set {short(name)} cannot be fetched from the hub ({short(reason)}): check the name, or name a "
            "folder."
        ) from error
