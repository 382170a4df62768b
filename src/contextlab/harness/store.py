"""Results on disk: one folder per run, one line per finished example, resumable after any kind of end."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from io import FileIO
from pathlib import Path
from typing import Any

from contextlab.benchmarks.task import Part
from contextlab.errors import UserError

Parts = dict[str, list[Part]]
"""By metric, the parts of one example."""
QUALITY = "quality"
"""The name of the parts that the protocol's quality makes."""


def digest(value: Any) -> str:
    """sha256 of a value as canonical JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def run_id(identity: Mapping[str, Any]) -> str:
    """`method-task-split-` and 12 hex digits that change with anything in `identity`."""
    words = (Path(identity["method"]).name, Path(identity["task"]).name, identity["split"])
    readable = "-".join(re.sub(r"[^a-z0-9]+", "-", word.lower()).strip("-") for word in words)
    return f"{readable}-{digest(identity)[:12]}"


class Run:
    """A run that this process holds: what it has finished, and where the next line goes.

    Attributes:
        folder: of the run.
        manifest: identity and provenance, as the run was first started with.
        lines: finished examples by id, in the order in which they were finished.
        summary: of the last command that finished; None before.
    """

    def __init__(self, folder: Path, file: FileIO, manifest: dict[str, Any]) -> None:
        self.folder = folder
        self._file = file
        self.lines = {line["id"]: line for line in _finished(folder / "examples.jsonl", file)}
        self.manifest = _stored(folder / "manifest.json") or manifest
        self.summary = _stored(folder / "summary.json")
        if self.manifest is manifest:
            _write(folder / "manifest.json", manifest)

    def append(self, line: Mapping[str, Any]) -> None:
        """Store one finished example, which has an `id`; it is on the disk when this returns."""
        text = json.dumps(line)
        rest = memoryview(text.encode() + b"\n")
        with _writing(self.folder):
            # A full disk shortens a write before it refuses one.
            while rest:
                rest = rest[self._file.write(rest) :]
            os.fsync(self._file.fileno())
        self.lines[line["id"]] = json.loads(text)

    def finish(self, summary: Mapping[str, Any]) -> dict[str, Any]:
        """Store the summary in place of an earlier one, and return it as it was stored."""
        stored: dict[str, Any] = json.loads(json.dumps(summary, default=str))
        with _writing(self.folder):
            _write(self.folder / "summary.json", stored)
        self.summary = stored
        return stored


@contextlib.contextmanager
def open_run(out: Path, identity: Mapping[str, Any], provenance: Mapping[str, Any]) -> Iterator[Run]:
    """Hold the run of an identity below `out`, new or as far as it came.

    Raises:
        UserError: when another process holds it, a stored line is broken, or `out` cannot be written.
    """
    name = run_id(identity)
    folder = out / name
    manifest = {"schema": 1, "run_id": name, "identity": dict(identity), "provenance": dict(provenance)}
    with contextlib.ExitStack() as held:
        with _writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            file = held.enter_context(open(folder / "examples.jsonl", "ab+", buffering=0))
            _lock(file, folder)
            run = Run(folder, file, json.loads(json.dumps(manifest, default=str)))
        try:
            yield run
        finally:
            if not run.lines:
                _discard(folder)


def parts(folder: Path, examples: int) -> dict[str, Parts]:
    """What the first examples of a stored run, by their ids, add to its metrics; those that were skipped add nothing.

    Args:
        folder: of the run.
        examples: as many as its summary is about; a run that was summarised anew with a lower limit has stored more.

    Raises:
        UserError: when a stored line is broken.
    """
    try:
        lines = _parsed(folder / "examples.jsonl", (folder / "examples.jsonl").read_bytes())
    except FileNotFoundError:
        return {}
    return {line["id"]: line_parts(line) for line in lines[:examples] if line.get("quality") is not None}


def line_parts(line: Mapping[str, Any]) -> Parts:
    """What one stored example adds to every metric that runs are compared in, and to `quality`, which all have.

    Raises:
        UserError: when it holds something else than parts.
    """
    try:
        stored = {name: [_part(*values) for values in rows] for name, rows in (line.get("parts") or {}).items()}
        cluster = (line.get("record") or {}).get("work", line["id"])
        return {**stored, QUALITY: [_part(line["quality"], 1.0, cluster)]}
    except (TypeError, ValueError, AttributeError, OverflowError):
        raise UserError(f"The stored example '{line['id']}' is broken: delete its line and it runs again.") from None


def _part(numerator: float, denominator: float, cluster: str, stratum: str = "") -> Part:
    part = Part(float(numerator), float(denominator), str(cluster), str(stratum))
    if not (math.isfinite(part.numerator) and 0 < part.denominator < math.inf):
        raise ValueError
    return part


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Put what the operating system refuses into a sentence."""
    try:
        yield
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UserError(
            f"Cannot write to {folder} ({reason}): make room there or choose another folder with --out, "
            "then run the same command again to resume."
        ) from error


def _lock(file: FileIO, folder: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UserError(f"Another process is running {folder}: wait for it, or end it.") from None


def _finished(path: Path, file: FileIO) -> list[dict[str, Any]]:
    """The whole lines of a file; what a killed process left of a last one is cut off."""
    file.seek(0)
    content = file.readall() or b""
    whole = content.rpartition(b"\n")[0] + b"\n" if b"\n" in content else b""
    if len(whole) < len(content):
        file.truncate(len(whole))
    return _parsed(path, whole)


def _parsed(path: Path, whole: bytes) -> list[dict[str, Any]]:
    lines = []
    for number, line in enumerate(whole.splitlines(), start=1):
        try:
            value = json.loads(line)
            lines.append({"id": value["id"], **value})
        except (ValueError, KeyError, TypeError):
            raise UserError(f"Line {number} of {path} is broken: delete it and its example runs again.") from None
    return lines


def _stored(path: Path) -> dict[str, Any] | None:
    """The JSON object of a file; None when there is no such file."""
    try:
        stored: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except ValueError:
        raise UserError(f"{path} is broken: delete it and run again.") from None
    return stored


def _write(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file so that it is there as a whole or not at all."""
    temporary = path.with_suffix(".tmp")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(json.dumps(value, indent=1, default=str) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _discard(folder: Path) -> None:
    """Remove a run that finished nothing, so that a refused command leaves nothing behind."""
    for name in ("examples.jsonl", "manifest.json"):
        (folder / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()
