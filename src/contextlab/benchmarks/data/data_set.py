"""What is known of a data set: its source, its licence, its files, and how to get it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

HUB = "https://huggingface.co/datasets"
RAW = "https://raw.githubusercontent.com"


@dataclasses.dataclass(frozen=True)
class Remote:
    """A file that can be downloaded.

    Attributes:
        path: below the folder of the data set.
        url: at a fixed revision wherever the host has revisions.
        digest: `sha256:...` or `md5:...` as published; None when nobody published one.
        bytes: size as published.
        unpack: for an archive: the leading folder that is removed from the paths of its members; "" for none.
        listed: for a file that lists further files, one path a line: the address that these are below.
    """

    path: str
    url: str
    digest: str | None = None
    bytes: int | None = None
    unpack: str | None = None
    listed: str | None = None


@dataclasses.dataclass(frozen=True)
class DataSet:
    """A data set.

    Attributes:
        name: its name in commands.
        about: one line of description.
        source: where it was published.
        licence: the terms in short.
        size: of the whole set.
        files: what the loaders read, as patterns below the folder, without `.gz` or `.xz`.
        tasks: that read it.
        remotes: what `contextlab data fetch` downloads.
        otherwise: how to get the files that are not downloaded.
        subfolder: its folder in the data folder; `name` when empty.
    """

    name: str
    about: str
    source: str
    licence: str
    size: str
    files: tuple[str, ...]
    tasks: tuple[str, ...] = ()
    remotes: tuple[Remote, ...] = ()
    otherwise: str = ""
    subfolder: str = ""

    @property
    def folder(self) -> str:
        """Its folder in the data folder."""
        return self.subfolder or self.name


def each(base: str, names: Iterable[str]) -> tuple[Remote, ...]:
    """Files below an address."""
    return tuple(Remote(name, f"{base}/{name}") for name in names)
