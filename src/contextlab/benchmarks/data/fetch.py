"""Downloads: resumed after an interruption, compared with published digests, stored once by their sha256.

Files are stored in the cache below `objects/`, named by their sha256, and linked to the paths that the loaders read.
"""

from __future__ import annotations

import errno
import hashlib
import http.client
import os
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from email.message import Message
from pathlib import Path, PurePosixPath
from typing import Any

from contextlab import files, locks
from contextlab.benchmarks.data.archives import unpack
from contextlab.benchmarks.data.data_set import DataSet, Remote
from contextlab.benchmarks.data.sources import note_revision
from contextlab.errors import UserError
from contextlab.files import Journal
from contextlab.paths import cache_dir
from contextlab.version import __version__

AGENT = f"contextlab/{__version__} (benchmark data; one request at a time)"
TIMEOUT = 30
MOST_BYTES = 4 * 2**30
SUMS = "SHA256SUMS"


def fetch(
    dataset: DataSet, mirror: str | None = None, report: Callable[[str], None] = lambda _: None
) -> Iterator[tuple[str, str]]:
    """Download a data set into the cache, as far as it can be downloaded; yields path and sha256 of every file.

    Args:
        dataset: an entry of the catalogue.
        mirror: folder or address with the files in the layout of a data folder.
        report: called with the address of every file before it is downloaded.

    Raises:
        UserError: when a file cannot be downloaded or is not the published one. Finished files stay, and the next
            call resumes the others.
    """
    folder = cache_dir() / "data" / dataset.folder
    base = None if mirror is None else f"{as_url(mirror)}/{dataset.folder}"
    queue = list(dataset.remotes)
    while queue:
        remote = queue.pop(0)
        url = remote.url if base is None else f"{base}/{remote.path}"
        # The lock is held for one file at a time, because the caller may stop between two files.
        with locks.held(f"data {dataset.folder}"):
            sha256 = _fetch_one(remote, url, folder, report)
        if remote.listed is not None:
            target = folder / remote.path
            lines = target.read_text(encoding="utf-8").split()
            queue += [Remote(_relative(line, target), f"{remote.listed}/{line}") for line in lines]
        yield remote.path, sha256


def _fetch_one(remote: Remote, url: str, folder: Path, report: Callable[[str], None]) -> str:
    """Store one file at the path that the loaders read, unpack it, and record all digests; returns its sha256."""
    target, sums = folder / remote.path, read_sums(folder / SUMS)
    sha256 = sums.get(remote.path, "")
    if not _intact(target, sha256, remote.digest):
        report(url)
        packed, revision = download(url, remote.digest, target)
        sha256 = packed.name
        install(packed, target)
        if revision:
            note_revision(target, revision, sha256)
    sums[remote.path] = sha256
    if remote.unpack is not None:
        sums.update({path: files.sha256(folder / path) for path in unpack(target, folder, remote.unpack)})
    write_sums(folder / SUMS, sums)
    return sha256


def download(url: str, digest: str | None = None, by_hand: Path | None = None) -> tuple[Path, str | None]:
    """Download one file into `objects/`; returns its path, and its commit where the host names one.

    Args:
        url: http, https or file.
        digest: `sha256:...` or `md5:...` that the file must have.
        by_hand: path where a user may put the file by hand, for the error message.

    Raises:
        UserError: when it cannot be downloaded, is larger than 4 GiB, or has another digest.
    """
    with locks.held(f"url {url}"):
        return _download(url, digest, by_hand)


def _download(url: str, digest: str | None, by_hand: Path | None) -> tuple[Path, str | None]:
    objects = cache_dir() / "objects"
    kind, _, published = (digest or "").partition(":")
    cached = objects / published
    if kind == "sha256" and cached.is_file() and files.sha256(cached) == published:
        return cached, None
    objects.mkdir(parents=True, exist_ok=True)
    part = objects / f"{hashlib.sha256(url.encode()).hexdigest()[:16]}.part"
    try:
        headers = _receive(url, part)
    except urllib.error.HTTPError as error:
        raise UserError(f"{url} was refused ({error.code} {error.reason}): {_by_hand(by_hand)}") from None
    except (OSError, http.client.HTTPException) as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise UserError(f"The disk is full: make room below {objects} or set CONTEXTLAB_CACHE.") from None
        raise UserError(f"{url} cannot be reached ({_reason(error)}): {_by_hand(by_hand)}") from None
    if kind and _digest(part, kind) != published:
        part.unlink()
        raise UserError(f"{url} does not have the published {kind} {published}: it was changed or cut, do not use it.")
    cached = objects / files.sha256(part)
    # Read-only, because links share this file.
    part.chmod(0o444)
    os.replace(part, cached)
    part.with_suffix(".validator").unlink(missing_ok=True)
    return cached, headers.get("X-Repo-Commit")


def get(url: str, most: int = 2**28) -> bytes | None:
    """The content at an address; None when the server has no such file.

    Raises:
        OSError, http.client.HTTPException: when the server cannot be reached.
        UserError: when it is larger than `most` bytes.
    """
    try:
        with _open(url) as response:
            content: bytes = response.read(most + 1)
    except urllib.error.HTTPError as error:
        if error.code in (404, 410):
            return None
        raise
    except urllib.error.URLError as error:
        if isinstance(error.reason, FileNotFoundError | IsADirectoryError):
            return None
        raise
    if len(content) > most:
        raise UserError(f"{url} is larger than {most} bytes: refused.")
    return content


def as_url(where: str) -> str:
    """The address, or the address of the folder, without a slash at its end.

    Raises:
        UserError: when `where` is neither an address nor a folder.
    """
    if where.startswith(("http://", "https://", "file://")):
        return where.rstrip("/")
    if not Path(where).is_dir():
        raise UserError(f"There is no folder {where}: name a folder, or an address that begins with https://.")
    return Path(where).resolve().as_uri()


def install(cached: Path, target: Path) -> None:
    """Link a file of `objects/` to `target`; copy it where the file system has no hard links."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            os.link(cached, Path(scratch, "file"))
            files.rename(Path(scratch, "file"), target)
    except OSError:
        with cached.open("rb") as content:
            files.copy(content, target)


def read_sums(path: Path) -> dict[str, str]:
    """sha256 by path, from a file in the format of `sha256sum`; empty when the file does not exist."""
    if not path.is_file():
        return {}
    lines = (line.split(maxsplit=1) for line in path.read_text(encoding="utf-8", errors="replace").splitlines())
    return {parts[1].lstrip("*"): parts[0] for parts in lines if len(parts) == 2}


def write_sums(path: Path, sums: dict[str, str]) -> None:
    """Write what `read_sums` reads."""
    files.write(path, "".join(f"{sha256}  {name}\n" for name, sha256 in sorted(sums.items())))


def _receive(url: str, part: Path) -> Message:
    """Download the missing end of `part`, or all of it when the server has no validator for a resumed download."""
    note = part.with_suffix(".validator")
    size = part.stat().st_size if part.exists() and note.exists() else 0
    range_header = {"Range": f"bytes={size}-", "If-Range": note.read_text()} if size else {}
    try:
        response = _open(url, range_header)
    except urllib.error.HTTPError as error:
        if error.code != http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
        size, response = 0, _open(url)
    with response:
        headers: Message = response.headers
        resumed = response.status == http.client.PARTIAL_CONTENT
        validator = headers.get("ETag") or headers.get("Last-Modified")
        if validator and not validator.startswith("W/"):
            files.write(note, validator)
        else:
            note.unlink(missing_ok=True)
        announced = headers.get("Content-Length")
        whole = (size if resumed else 0) + int(announced) if announced else None
        if whole is not None and whole > MOST_BYTES:
            raise UserError(f"{url} is larger than {MOST_BYTES} bytes: refused.")
        with Journal(part, None if resumed else 0) as received:
            while block := response.read(2**20):
                received.write(block)
                if received.length > MOST_BYTES:
                    raise UserError(f"{url} is larger than {MOST_BYTES} bytes: refused.")
    if whole is not None and part.stat().st_size != whole:
        raise ConnectionError(f"broke off after {part.stat().st_size} of {whole} bytes")
    return headers


class _KeepCommit(urllib.request.HTTPRedirectHandler):
    """Keeps the commit, which the hub sends in its own response and not from the storage that it redirects to."""

    commit: str | None = None

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        self.commit = headers.get("X-Repo-Commit") or self.commit
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _open(url: str, headers: dict[str, str] | None = None) -> Any:
    if url.startswith("http"):
        import huggingface_hub as hub

        if hub.is_offline_mode():
            raise ConnectionError("HF_HUB_OFFLINE is set")
    request = urllib.request.Request(url, headers={"User-Agent": AGENT, **(headers or {})})
    redirected = _KeepCommit()
    response = urllib.request.build_opener(redirected).open(request, timeout=TIMEOUT)
    if redirected.commit and "X-Repo-Commit" not in response.headers:
        response.headers["X-Repo-Commit"] = redirected.commit
    return response


def _intact(target: Path, sha256: str, digest: str | None) -> bool:
    if not target.is_file() or not sha256 or files.sha256(target) != sha256:
        return False
    kind, _, published = (digest or "").partition(":")
    return not kind or _digest(target, kind) == published


def _relative(line: str, listing: Path) -> str:
    path = PurePosixPath(line)
    if path.is_absolute() or ".." in path.parts or "\\" in line or ":" in line:
        raise UserError(f"{listing} lists {line!r}, which is no path inside the data set: refused.")
    return str(path)


def _reason(error: Exception) -> str:
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    return str(reason) or type(error).__name__


def _by_hand(path: Path | None) -> str:
    where = f", or put the file from elsewhere at {path}" if path else ""
    return f"run the same command again when it can be had{where}."


def _digest(path: Path, kind: str) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, kind).hexdigest()
