"""Where a sweep keeps its runs: a folder, or an address of fsspec with a folder of the cache in front of it."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from contextlab import files
from contextlab.errors import UserError
from contextlab.harness.store import LINES, PACKED, SUMMARY
from contextlab.paths import cache_dir

if TYPE_CHECKING:
    import fsspec

HIDDEN = ".sweep"
"""Holds the plan and the shards, and no finished run."""
SHARDS = f"{HIDDEN}/shards"
REMEDY = "choose another one with --out, then run the same command again to resume"


class Place:
    """A folder that all workers see.

    Attributes:
        folder: where runs are read and written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def of(cls, out: str) -> Place:
        """The place of an option `--out`: an address holds `://`.

        Raises:
            UserError: when nothing can reach the address.
        """
        return RemoteStore(out) if "://" in out else cls(Path(out))

    def take(self, name: str) -> Path:
        """A folder below the place, as it is stored; it may not exist yet."""
        return self.folder / name

    def take_file(self, name: str) -> Path:
        """A file below the place, as it is stored; it may not exist."""
        return self.folder / name

    def give(self, name: str) -> None:
        """Have a folder or file stored as it is now."""

    def below(self, name: str) -> list[str]:
        """Names of what is in a folder; none where it is missing."""
        folder = self.folder / name
        return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []

    def remove(self, name: str) -> None:
        """Remove a folder, and those above that are empty then."""
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            for parent in folder.relative_to(self.folder).parents:
                (self.folder / parent).rmdir()


class RemoteStore(Place):
    """An address of fsspec; its folders are copied to the cache, and back when they have changed.

    A file appears there as a whole, and a summary last: a run whose copy was interrupted is an unfinished one.
    """

    def __init__(self, out: str) -> None:
        super().__init__(cache_dir() / "sweeps" / hashlib.sha256(out.encode()).hexdigest()[:16])
        self.out = out
        with self._reached():
            self.files, self.root = _opened(out)

    def take(self, name: str) -> Path:
        """The folder in the cache, which is replaced where the address has more of the run."""
        folder = self.folder / name
        listed = self.below(name)
        with self._reached():
            sizes = {file: self.files.size(f"{self.root}/{name}/{file}") for file in listed}
            if _progress(sizes) > _progress({path.name: path.stat().st_size for path in folder.glob("*.*")}):
                shutil.rmtree(folder, ignore_errors=True)
                with files.new_folder(folder) as fresh:
                    for file in listed:
                        files.write(fresh / file, self.files.cat_file(f"{self.root}/{name}/{file}"))
        return folder

    def take_file(self, name: str) -> Path:
        """The file, copied to the cache where the address has it."""
        path, address = self.folder / name, f"{self.root}/{name}"
        with self._reached():
            if self.files.isfile(address):
                path.parent.mkdir(parents=True, exist_ok=True)
                files.write(path, self.files.cat_file(address))
        return path

    def give(self, name: str) -> None:
        """Copy a folder or file to the address, a summary last."""
        local = self.folder / name
        names = sorted(local.iterdir(), key=lambda path: path.name == SUMMARY) if local.is_dir() else [local]
        with self._reached():
            for path in names:
                if path.is_file() and not path.name.startswith("."):
                    self._put(path, f"{self.root}/{PurePosixPath(path.relative_to(self.folder))}")

    def below(self, name: str) -> list[str]:
        """Names of what the address has in a folder."""
        with self._reached():
            try:
                listed = self.files.ls(f"{self.root}/{name}", detail=False)
            except FileNotFoundError:
                return []
        return sorted(PurePosixPath(path).name for path in listed if not PurePosixPath(path).name.startswith("."))

    def remove(self, name: str) -> None:
        """Remove a folder at the address and in the cache."""
        super().remove(name)
        with self._reached(), contextlib.suppress(FileNotFoundError):
            self.files.rm(f"{self.root}/{name}", recursive=True)

    def _put(self, path: Path, target: str) -> None:
        """Write a file under another name first, so that no reader sees a part of it."""
        partial = str(PurePosixPath(target).with_name(f".{PurePosixPath(target).name}{files.PARTIAL}"))
        self.files.makedirs(str(PurePosixPath(target).parent), exist_ok=True)
        self.files.put_file(str(path), partial)
        self.files.mv(partial, target)

    @contextlib.contextmanager
    def _reached(self) -> Iterator[None]:
        """Say of an address that it cannot be used, whatever its file system raises."""
        try:
            yield
        except UserError:
            raise
        except Exception as error:
            why = files.reason(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
            raise UserError(f"{self.out} cannot be used ({why.splitlines()[0]}): {REMEDY}.") from error


def _opened(out: str) -> tuple[fsspec.AbstractFileSystem, str]:
    from fsspec.core import url_to_fs

    filesystem, root = url_to_fs(out)
    return filesystem, str(root).rstrip("/")


def _progress(sizes: Mapping[str, int | None]) -> tuple[bool, int]:
    """How far a run is, by the sizes of its files: whether it has a summary, and bytes of its lines."""
    return SUMMARY in sizes, sizes.get(LINES) or sizes.get(PACKED) or -1
