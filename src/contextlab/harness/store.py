"""Results on disk: one folder per run and one line per finished example; a run can always be resumed.

The lines of a finished run may be packed, for results that are kept. Whatever reads them reads both; when the run goes
on they are unpacked.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pydantic

from contextlab import files, locks, packed, seals
from contextlab.errors import UserError
from contextlab.files import Journal
from contextlab.harness import earlier
from contextlab.harness.stored import ExampleLine, Manifest, Parts, Provenance, Result, StoredModel, plain
from contextlab.seals import Damaged

SUMMARY, MANIFEST, LINES = "summary.json", "manifest.json", "examples.jsonl"
PACKED = f"{LINES}.xz"
"""Holds the lines where there is no file `LINES`."""
BROKEN = (Damaged, RecursionError, pydantic.ValidationError)
"""What reading raises for a file that this package did not write."""
M = TypeVar("M", bound=StoredModel)


def digest(value: Any) -> str:
    """sha256 of a value as canonical JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def run_id(identity: Mapping[str, Any]) -> str:
    """`method-task-split-` and 12 hex digits that change with anything in `identity`."""
    words = (Path(identity["method"]).name, Path(identity["task"]).name, identity["split"])
    readable = "-".join(map(files.slug, words))
    return f"{readable}-{digest(identity)[:12]}"


class OpenRun:
    """A run that this process has locked, with its finished examples.

    Attributes:
        folder: its folder.
        manifest: identity and provenance of its first start.
        lines: finished examples by id, in the order in which they were first finished.
        journal: their file.
        summary: result of the last command that finished; None before.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        path = folder / LINES
        whole = _whole(content(folder) or b"")
        if (folder / PACKED).exists():
            if not path.exists():
                files.write(path, whole)
            (folder / PACKED).unlink()
        stored = read_manifest(folder)
        self.manifest = manifest if stored is None else stored
        self.lines = {line.id: line for line in _parsed(path, whole, self.manifest.run_id)}
        self.summary = _result(folder)
        # Examples without the manifest of their run, as a killed process could leave them, would belong to nothing.
        if stored is None:
            seals.write(folder / MANIFEST, manifest.as_json())
        # An incomplete last line, left by a killed process, is cut off.
        self.journal = Journal(path, len(whole))

    def append(self, line: ExampleLine) -> None:
        """Store one finished example; it is on disk when this function returns."""
        self.extend([line])

    def extend(self, lines: Sequence[ExampleLine]) -> None:
        """Store finished examples; they are on disk when this function returns."""
        texts = (seals.sealed(line.as_json(), salt=self.manifest.run_id, line=True) for line in lines)
        with _writing(self.folder):
            self.journal.append(b"".join(text.encode() + b"\n" for text in texts))
        self.lines |= {line.id: line for line in lines}

    def finish(self, result: Result) -> Result:
        """Store the result, replacing an earlier one, and return it with its folder."""
        with _writing(self.folder):
            seals.write(self.folder / SUMMARY, result.as_json(), salt=self.manifest.run_id)
        self.summary = result.placed(self.folder)
        return self.summary


@contextlib.contextmanager
def open_run(out: Path, identity: Mapping[str, Any], provenance: Provenance) -> Iterator[OpenRun]:
    """Lock the run of an identity below `out`, a new or an unfinished one.

    Raises:
        UserError: when another process has locked it, a stored line is broken, or `out` cannot be written.
    """
    name = run_id(identity)
    folder = out / name
    manifest = Manifest(run_id=name, identity=plain(identity), provenance=provenance)
    with contextlib.ExitStack() as stack:
        with _writing(folder):
            refusal = f"Another process is running {folder}: wait for it, or end it."
            stack.enter_context(locks.alone(folder, refusal))
            run = OpenRun(folder, manifest)
            stack.enter_context(run.journal)
        try:
            yield run
        finally:
            if not run.lines:
                _discard(folder)


def lines(folder: Path, examples: int | None = None) -> list[ExampleLine]:
    """The lines of the first examples of a stored run, one for each, in the order in which they were finished.

    Args:
        folder: folder of the run.
        examples: number of examples in its result; the run stores more when it was repeated with a lower limit. All
            when None.

    Returns:
        An empty list where the run has no file of lines.

    Raises:
        UserError: when a stored line is broken, or there are fewer lines than examples; an incomplete last line is
            ignored.
    """
    path = lines_file(folder)
    try:
        text = content(folder)
        if text is None:
            return []
        stored = _parsed(path, _whole(text), _run_id(folder))
    except OSError as error:
        raise _unreadable(path, error) from None
    # Lines are in the order in which examples were finished, which may differ from that of the data in a resumed run.
    # The last line of an example counts, which may have had another name before.
    latest = {line.index: line for line in {line.id: line for line in stored}.values()}
    first = [line for line in latest.values() if examples is None or line.index < examples]
    if examples is not None and len(first) < examples:
        raise UserError(f"{path} has {len(first)} of the {examples} examples of its run: run its benchmark again.")
    return first


def lines_file(folder: Path) -> Path:
    """The file that holds the lines of a run: the plain one, unless only the packed one is there."""
    plain, small = folder / LINES, folder / PACKED
    return small if os.path.lexists(small) and not os.path.lexists(plain) else plain


def content(folder: Path) -> bytes | None:
    """The lines of a run as they were written; None where it has no file of them.

    Raises:
        UserError: when they are packed and cannot be unpacked.
        OSError: when their file cannot be read.
    """
    path = lines_file(folder)
    try:
        return packed.unpacked(path) if path.name == PACKED else path.read_bytes()
    except FileNotFoundError:
        return None
    except packed.BrokenPack as broken:
        raise UserError(
            f"{path} is broken ({broken}): put the intact file back, or delete it and run its benchmark again."
        ) from None


def pack(folder: Path) -> None:
    """Pack the lines of a finished run, which are left as they are where they are packed.

    Raises:
        UserError: when it is not finished, a process has it, or it cannot be written.
    """
    if not (folder / SUMMARY).exists():
        raise UserError(f"{folder} is no finished run: finish it with its command, then pack it.")
    with _writing(folder), locks.alone(folder, f"Another process is running {folder}: wait for it, or end it."):
        if (folder / LINES).exists():
            files.write(folder / PACKED, packed.packed((folder / LINES).read_bytes()))
            (folder / LINES).unlink()


def parts(folder: Path, examples: int) -> dict[str, Parts]:
    """The parts of the first examples of a stored run, by their ids; skipped examples have none.

    Args:
        folder: folder of the run.
        examples: number of examples in its result.

    Raises:
        UserError: as `lines`.
    """
    return {line.id: line.compared() for line in lines(folder, examples) if line.quality is not None}


def read_result(folder: Path) -> Result:
    """The stored result of a finished run.

    Raises:
        UserError: when its file cannot be read, or holds no result.
    """
    result = _result(folder)
    if result is None:
        raise UserError(f"There is no file {folder / SUMMARY}: run its benchmark again.")
    return result


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of a run; None where it has none.

    Raises:
        UserError: when its file cannot be read, or holds no manifest.
    """
    return _read(folder / MANIFEST, Manifest, earlier.manifest)


def _run_id(folder: Path) -> str:
    """The id that the seals of a run's result and lines name, by its manifest or else by its folder."""
    try:
        return str(seals.opened(seals.text(folder / MANIFEST))["run_id"])
    except (FileNotFoundError, KeyError, *BROKEN):
        return folder.name


def _result(folder: Path) -> Result | None:
    def migrated(value: dict[str, Any]) -> dict[str, Any]:
        if value.get("schema") == earlier.FIRST:
            of_run = read_manifest(folder)
            return earlier.migrated(value, None if of_run is None else of_run.as_json())
        return value

    result = _read(folder / SUMMARY, Result, migrated, _run_id(folder))
    return None if result is None else result.placed(folder)


def _unreadable(path: Path, error: OSError) -> UserError:
    return UserError(f"{path} cannot be read ({files.reason(error)}): delete it and run its benchmark again.")


def _writing(folder: Path) -> contextlib.AbstractContextManager[None]:
    """Turn errors of the operating system into a UserError."""
    return files.writing(folder, "choose another folder with --out, then run the same command again to resume")


def _whole(content: bytes) -> bytes:
    """The content without an incomplete last line, which a killed process may leave."""
    return content[: content.rfind(b"\n") + 1]


def _parsed(path: Path, whole: bytes, run_id: str) -> list[ExampleLine]:
    """The lines of a run; where one of them is sealed, all must be."""
    indices: dict[str, int] = {}
    parsed: list[ExampleLine] = []
    sealed = b'"seal": "' in whole
    for number, line in enumerate(whole.splitlines(), start=1):
        try:
            opened = _opened(_text(line), run_id, sealed)
            parsed.append(ExampleLine.model_validate(earlier.line(opened, indices)))
        except BROKEN as error:
            raise UserError(
                f"Line {number} of {path} is broken ({_reason(error)}): delete it and its example runs again."
            ) from None
    return parsed


def _opened(text: str, run_id: str, sealed: bool = False) -> dict[str, Any]:
    """A result or line, whose seal names its run, or no run where it was copied; that of another run is refused."""
    try:
        return seals.opened(text, salt=run_id, required=sealed)
    except Damaged:
        return seals.opened(text, required=sealed)


def _read(
    path: Path, kind: type[M], migrated: Callable[[dict[str, Any]], dict[str, Any]], run_id: str = ""
) -> M | None:
    """The object of a file; None when there is no such file."""
    try:
        return kind.model_validate(migrated(_opened(seals.text(path), run_id)))
    except FileNotFoundError:
        return None
    except BROKEN as error:
        raise UserError(
            f"{path} is broken ({_reason(error)}): delete it and run its benchmark again, finished examples are kept."
        ) from None


def _text(line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError:
        raise Damaged("no UTF-8") from None


def _reason(error: Exception) -> str:
    if isinstance(error, pydantic.ValidationError):
        return seals.first_fault(error)
    return "lists in too many lists" if isinstance(error, RecursionError) else str(error)


def _discard(folder: Path) -> None:
    """Remove the files of a run without finished examples."""
    for name in (LINES, PACKED, MANIFEST):
        (folder / name).unlink(missing_ok=True)
