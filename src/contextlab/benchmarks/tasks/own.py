"""What all tasks over files of a user's have in common: files, and how settings that name them are written."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from contextlab import grammar
from contextlab.benchmarks.data import named_files
from contextlab.benchmarks.data.named_files import HUB, NamedFiles
from contextlab.benchmarks.task import LENGTHS, Dataset, Source, Task
from contextlab.errors import UserError, listed, short

FUNCTION = ".py:"


class NamesFiles(Task):
    """A task with settings that name files.

    A run is identified by what is in the files. Labels name them without their folders.

    Attributes:
        named: settings that name files.
    """

    named: ClassVar[tuple[str, ...]]

    def spelled(self, split: str) -> str:
        """A split with its settings, in which files have no folders."""
        settings = self.config.changed()
        named = {name: without_folder(value) if name in self.named else value for name, value in settings.items()}
        return grammar.spelled_split(split, {name: value for name, value in named.items() if name not in LENGTHS})

    def identified(self, spelled: str) -> str:
        """The settings, in which files are left out, and functions have the digest of their file."""
        item = grammar.split(spelled)
        settings = {name: self._identified(name) for name in item.settings}
        kept_settings = {name: value for name, value in settings.items() if value is not None}
        return grammar.spelled_split(item.name, kept_settings)

    def _identified(self, name: str) -> Any:
        value = self.config.as_dict()[name]
        if name not in self.named or not isinstance(value, str):
            return value
        path, function, attribute = value.rpartition(FUNCTION)
        if function:
            return f"{named_files.digest(Path(f'{path}.py'))}:{attribute}"
        return value if name == "metric" else None


class OwnFiles(NamesFiles):
    """A task over files that a setting names; without it, over a generated sample.

    Attributes:
        forms: endings of names of files that are read.
    """

    splits: ClassVar[dict[str, str]] = {"all": "everything in the files of `path`"}
    default_split: ClassVar[str] = "all"
    forms: ClassVar[tuple[str, ...]]
    named: ClassVar[tuple[str, ...]] = ("path",)

    def files(self, location: str) -> NamedFiles:
        """The files that a setting names.

        Raises:
            UserError: when there are none.
        """
        return named_files.named_files(location, self.forms, "file")


def without_folder(location: Any) -> Any:
    """The name of a file without its folder; anything else as it is."""
    if not isinstance(location, str) or location.startswith(HUB) or "{" in location:
        return location
    return Path(location).name


def own_dataset(
    examples: Sequence[Any], location: str, sha256: str, about: str, left_out: Sequence[str] = ()
) -> Dataset:
    """Examples from files of a user's, with a note that says so.

    Args:
        examples: in their order.
        location: as the user named it.
        sha256: digest of the files.
        about: what the files hold.
        left_out: paths of files in the same folder that are not read.
    """
    source: Source = "hub" if location.startswith(HUB) else "local"
    name = location if source == "hub" else Path(location).expanduser().resolve().name
    note = f"own data: {name}, {about}, sha256 {sha256[:12]}"
    others = f"; left out: {listed([short(path) for path in left_out])}" if left_out else ""
    return Dataset(tuple(examples), source, sha256, note + others)


def sample_of(examples: Sequence[Any]) -> Dataset:
    """Generated examples in place of a file."""
    digest = hashlib.sha256(repr(examples).encode()).hexdigest()
    return Dataset(tuple(examples), "sample", digest, "generated sample, not a file of your own")


def text_or_file(value: str, setting: str) -> str:
    r"""A text of a setting, in which `\n` is a line end; or the text of the file that it names.

    Raises:
        UserError: when it has no placeholder, and there is no such file.
    """
    if "{" in value:
        return value.replace("\\n", "\n")
    if not Path(value).is_file():
        raise UserError(f"There is no file {value} for {setting}: name one, or write a text with {{...}} in it.")
    return named_files.text(Path(value)).removesuffix("\n")


def count_of(number: int, what: str) -> str:
    """A number with its noun, as `1 text` or `3 texts`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"
