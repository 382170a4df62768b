"""Results on disk: one folder per run and one line per finished example; a run can always be resumed."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from contextlab import files, locks
from contextlab.benchmarks.task import Part
from contextlab.errors import UserError
from contextlab.files import Journal
from contextlab.harness import schema

SCHEMA = 1
"""Version of what a run stores, which is part of its identity."""
Parts = dict[str, list[Part]]
"""The parts of one example, by metric."""
QUALITY = "quality"
"""The key of the parts that are made from the protocol's quality."""


def digest(value: Any) -> str:
    """sha256 of a value as canonical JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def run_id(identity: Mapping[str, Any]) -> str:
    """`method-task-split-` and 12 hex digits that change with anything in `identity`."""
    words = (Path(identity["method"]).name, Path(identity["task"]).name, identity["split"])
    readable = "-".join(re.sub(r"[^a-z0-9]+", "-", word.lower()).strip("-") for word in words)
    return f"{readable}-{digest(identity)[:12]}"


class Run:
    """A run that this process has locked, with its finished examples.

    Attributes:
        folder: its folder.
        manifest: identity and provenance of its first start.
        lines: finished examples by id, in the order in which they were finished.
        journal: their file.
        summary: summary of the last command that finished; None before.
    """

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        self.folder = folder
        path = folder / "examples.jsonl"
        whole = _whole(path.read_bytes() if path.exists() else b"")
        self.lines = {line["id"]: line for line in _parsed(path, whole, schema.Line)}
        # An incomplete last line, left by a killed process, is cut off.
        self.journal = Journal(path, len(whole))
        self.manifest = _stored(folder / "manifest.json", schema.Manifest) or manifest
        self.summary = _stored(folder / "summary.json", schema.Summary)
        if self.manifest is manifest:
            files.write(folder / "manifest.json", _json(manifest))

    def append(self, line: Mapping[str, Any]) -> None:
        """Store one finished example, which has an `id`; it is on disk when this function returns."""
        text = json.dumps(line)
        with _writing(self.folder):
            self.journal.append(text.encode() + b"\n")
        self.lines[line["id"]] = json.loads(text)

    def finish(self, summary: Mapping[str, Any]) -> dict[str, Any]:
        """Store the summary, replacing an earlier one, and return it as stored."""
        stored: dict[str, Any] = json.loads(json.dumps(summary, default=str))
        with _writing(self.folder):
            files.write(self.folder / "summary.json", _json(stored))
        self.summary = stored
        return stored


@contextlib.contextmanager
def open_run(out: Path, identity: Mapping[str, Any], provenance: Mapping[str, Any]) -> Iterator[Run]:
    """Lock the run of an identity below `out`, a new or an unfinished one.

    Raises:
        UserError: when another process has locked it, a stored line is broken, or `out` cannot be written.
    """
    name = run_id(identity)
    folder = out / name
    manifest = {"schema": SCHEMA, "run_id": name, "identity": dict(identity), "provenance": dict(provenance)}
    with contextlib.ExitStack() as held:
        with _writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            held.callback(_remove_empty, folder)
            refusal = f"Another process is running {folder}: wait for it, or end it."
            held.enter_context(locks.alone(folder, refusal))
            run = Run(folder, json.loads(json.dumps(manifest, default=str)))
            held.enter_context(run.journal)
        try:
            yield run
        finally:
            if not run.lines:
                _discard(folder)


def lines(folder: Path, examples: int) -> list[dict[str, Any]]:
    """The lines of the first examples of a stored run, one for each, in the order in which they were finished.

    Args:
        folder: folder of the run.
        examples: number of examples in its summary; the run stores more when it was repeated with a lower limit.

    Raises:
        UserError: when a stored line is broken; an incomplete last line is ignored.
    """
    path = folder / "examples.jsonl"
    try:
        stored = _parsed(path, _whole(path.read_bytes()), schema.Score)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise _unreadable(path, error) from None
    # Lines are in the order in which examples were finished, which may differ from that of the data in a resumed run.
    # The last line of an example counts.
    latest = {line["id"]: line for line in stored}
    if all(line.get("index") is not None for line in stored):
        return [line for line in latest.values() if line["index"] < examples]
    return list(latest.values())[:examples]


def parts(folder: Path, examples: int) -> dict[str, Parts]:
    """The parts of the first examples of a stored run, by their ids; skipped examples have none.

    Args:
        folder: folder of the run.
        examples: number of examples in its summary.

    Raises:
        UserError: as `lines`.
    """
    return {line["id"]: line_parts(line) for line in lines(folder, examples) if line.get("quality") is not None}


def line_parts(line: Mapping[str, Any]) -> Parts:
    """The parts of one stored example in the metrics that runs are compared in, and in `quality`."""
    stored = {name: [_part(*values) for values in rows] for name, rows in (line.get("parts") or {}).items()}
    cluster = (line.get("record") or {}).get("work", line["id"])
    return {**stored, QUALITY: [_part(line["quality"], 1.0, cluster)]}


def _part(numerator: float, denominator: float, cluster: str, stratum: str = "") -> Part:
    return Part(float(numerator), float(denominator), str(cluster), str(stratum))


def read_summary(path: Path) -> dict[str, Any]:
    """The stored result of a finished run.

    Raises:
        UserError: when the file cannot be read, or holds no result.
    """
    stored = _stored(path, schema.Summary)
    if stored is None:
        raise UserError(f"There is no file {path}: run its benchmark again.")
    return stored


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=1) + "\n"


def _unreadable(path: Path, error: OSError) -> UserError:
    reason = (error.strerror or str(error)).lower()
    return UserError(f"{path} cannot be read ({reason}): delete it and run its benchmark again.")


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Turn errors of the operating system into a UserError."""
    try:
        yield
    except OSError as error:
        otherwise = "choose another folder with --out, then run the same command again to resume"
        raise files.unwritable(folder, error, otherwise) from error


def _whole(content: bytes) -> bytes:
    """The content without an incomplete last line, which a killed process may leave."""
    return content[: content.rfind(b"\n") + 1]


def _parsed(path: Path, whole: bytes, kind: type[schema.Part]) -> list[dict[str, Any]]:
    lines = []
    for number, line in enumerate(whole.splitlines(), start=1):
        try:
            value = json.loads(line)
            fault = schema.fault(kind, value)
        except (ValueError, RecursionError):
            fault = "no JSON"
        if fault is not None:
            raise UserError(
                f"Line {number} of {path} is broken ({fault}): delete it and its example runs again."
            ) from None
        lines.append(value)
    return lines


def _stored(path: Path, kind: type[schema.Part]) -> dict[str, Any] | None:
    """The JSON object of a file; None when there is no such file."""
    try:
        stored: dict[str, Any] = json.loads(path.read_text("utf-8"))
        fault = schema.fault(kind, stored)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreadable(path, error) from None
    except (ValueError, RecursionError):
        fault = "no JSON"
    if fault is not None:
        raise UserError(
            f"{path} is broken ({fault}): delete it and run its benchmark again, finished examples are kept."
        )
    return stored


def _discard(folder: Path) -> None:
    """Remove the files of a run without finished examples."""
    for name in ("examples.jsonl", "manifest.json"):
        (folder / name).unlink(missing_ok=True)


def _remove_empty(folder: Path) -> None:
    """Remove an empty folder, so that a refused command leaves none."""
    with contextlib.suppress(OSError):
        folder.rmdir()
