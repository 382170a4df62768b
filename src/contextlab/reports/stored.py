"""Reads the stored runs below a folder."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Mapping
from pathlib import Path

from contextlab import files, trained
from contextlab.errors import UserError
from contextlab.harness.labels import with_name
from contextlab.harness.store import MANIFEST, SUMMARY, parts, read_result
from contextlab.harness.stored import Parts, Result


@contextlib.contextmanager
def gc_paused() -> Iterator[None]:
    """Collect no garbage inside, in any thread; afterwards the collector is as it was before.

    Stored runs are many small objects without circles: looking for circles among them takes half of the reading time.
    Of threads inside at the same time, all that found it enabled enable it, and others leave it: it ends enabled.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@gc_paused()
def summaries(folder: Path | str) -> list[Result]:
    """The results of all finished runs below a folder, at any depth, each with its folder.

    Raises:
        UserError: when there are none, or a summary is broken.
    """
    if Path(folder).is_file():
        raise UserError(f"{folder} is a file: name the folder that `contextlab bench` wrote to.")
    paths = _paths(folder, SUMMARY)
    unfinished_runs = [] if paths else unfinished(folder)
    if unfinished_runs:
        raise UserError(
            f"No run below {folder} is finished ({unfinished_runs[0].name}): run its command again to resume it."
        )
    if not paths:
        raise UserError(f"There are no results below {folder}: run `contextlab bench` with --out {folder} first.")
    listed = trained.by_digest()
    return [with_name(read_result(path.parent), listed) for path in paths]


@gc_paused()
def load_results(folder: Path | str) -> list[Result]:
    """The results below a folder, each with the parts of its examples, from which paired differences are made.

    Raises:
        UserError: as `summaries`, or when a stored line is broken.
    """
    return [result.placed(result.folder, parts_of(result)) for result in summaries(folder)]


def parts_of(result: Result) -> Mapping[str, Parts]:
    """The parts of the examples of a result: those that it carries, or else those in its folder; empty without both.

    Raises:
        UserError: when a stored line is broken.
    """
    if result.parts is not None:
        return result.parts
    return {} if result.folder is None else parts(result.folder, result.data.examples)


def unfinished(folder: Path | str) -> list[Path]:
    """Folders of runs below a folder that have begun and not ended, so that they have no summary yet."""
    return [path.parent for path in _paths(folder, MANIFEST) if not path.with_name(SUMMARY).exists()]


def _paths(folder: Path | str, name: str) -> list[Path]:
    """Paths of files with a name, also through symbolic links; every folder is read once."""
    paths: list[Path] = []
    for directory, folders, names in files.walk(folder):
        # Parts of runs that a sweep has not put together yet are in a hidden folder.
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        paths += [Path(directory, name)] if name in (*names, *folders) else []
    return sorted(paths)
