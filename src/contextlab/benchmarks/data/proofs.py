"""Verifies that data is the publisher's: by digests of whole files or of single items.

Whole files are compared with the publishers' digests in the catalogue. For parts of a set, which have no published
digest, `proofs.json` holds the first six bytes of the sha256 of every item (or file) of the publisher:
`benches/proofs.py` makes it from a folder whose digests it verifies first. All other data is called the user's own.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import tarfile
import zlib
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any

from contextlab.benchmarks.data.catalogue import SETS
from contextlab.benchmarks.data.data_set import Remote
from contextlab.packed import UNPACK, content, plain_name

FILE = "proofs.json"
KEPT_BYTES = 6


def item(*parts: str) -> str:
    """The digest of an item, from all its parts."""
    digest = hashlib.sha256()
    for part in parts:
        content = part.encode("utf-8", "surrogatepass")
        digest.update(len(content).to_bytes(8) + content)
    return digest.hexdigest()[: 2 * KEPT_BYTES]


def record_item(record: Any) -> str:
    """The digest of a JSON value, whatever the order of its fields."""
    try:
        return item(json.dumps(record, sort_keys=True))
    except RecursionError:
        return ""


def file_item(name: str, path: Path) -> str:
    """The digest of a file's name and unpacked content."""
    return item(name, hashlib.sha256(_unpacked(path)).hexdigest())


def verified(group: str, items: Iterable[str]) -> bool:
    """Whether all items are different and belong to a group of `proofs.json`."""
    listed = list(items)
    return bool(listed) and len(set(listed)) == len(listed) and known(group).issuperset(listed)


@functools.cache
def known(group: str) -> frozenset[str]:
    """The digests of a group; empty for an unknown group."""
    packed = base64.b64decode(_content().get(group, ""))
    return frozenset(packed[n : n + KEPT_BYTES].hex() for n in range(0, len(packed), KEPT_BYTES))


def packed(items: Iterable[str]) -> str:
    """The items in the format that `known` reads."""
    return base64.b64encode(b"".join(bytes.fromhex(digest) for digest in sorted(set(items)))).decode()


def published(dataset: str, path: Path) -> bool:
    """Whether a file, packed or unpacked, has the digest that its publisher states."""
    remotes = (remote for remote in SETS[dataset].remotes if remote.digest and remote.unpack is None)
    return any(_is_at(path, remote.path) and _has_digest(path, remote) for remote in remotes)


def in_archive(dataset: str, path: Path, member: str) -> bool:
    """Whether a file of the data set equals a member of its published archive in the same folder."""
    root = path.parents[member.count("/")]
    for remote in SETS[dataset].remotes:
        archive = root / remote.path
        if remote.unpack is None or not archive.is_file() or not _has_digest(archive, remote, unpacked=False):
            continue
        try:
            with tarfile.open(archive) as tar:
                held_file = tar.extractfile(f"{remote.unpack}/{member}")
                return held_file is not None and held_file.read() == _unpacked(path)
        except (KeyError, OSError, tarfile.TarError, EOFError, zlib.error):
            return False
    return False


def unverified(layout: str, count: int, noun: str, more: str = "") -> str:
    """The note of a data set with `count` items that could not be verified."""
    amount = f"{count:,} {noun}{'s' * (count != 1)}{more}"
    return f"your own data in the layout of {layout}, not verified against the publisher: {amount}"


@functools.cache
def _content() -> dict[str, str]:
    content: dict[str, str] = json.loads((resources.files(__package__) / FILE).read_text(encoding="utf-8"))
    return content


def _is_at(path: Path, name: str) -> bool:
    return f"/{plain_name(path.as_posix())}".endswith(f"/{plain_name(name)}")


def _has_digest(path: Path, remote: Remote, unpacked: bool = True) -> bool:
    kind, _, digest = (remote.digest or "").partition(":")
    contents = [path.read_bytes(), *([_unpacked(path)] if unpacked and path.suffix in UNPACK else [])]
    return any(hashlib.new(kind, content, usedforsecurity=False).hexdigest() == digest for content in contents)


def _unpacked(path: Path) -> bytes:
    return content(path)
