from __future__ import annotations

import errno
import gzip
import hashlib
import lzma
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest

from contextlab.benchmarks.data.sources import (
    Location,
    cache_dir,
    field,
    json_file,
    locate,
    parse_json,
    plain_or_packed,
    read,
    shuffled,
)
from contextlab.errors import UserError

FILE = "chapterbreak_ctx_512.json"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache and no hub."""
    monkeypatch.setenv("CONTEXTLAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CONTEXTLAB_DATA", raising=False)
    monkeypatch.setattr(huggingface_hub, "is_offline_mode", lambda: True)
    return tmp_path / "cache"


def put(folder: Path, content: bytes = b"{}", name: str = FILE) -> Path:
    path = folder / "chapterbreak" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


class Hub:
    """A hub that serves one file at one commit, or fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, commit: str | None, error: Exception | None = None) -> None:
        self.error, self.revisions = error, list[str]()
        head = SimpleNamespace(commit_hash=commit)
        monkeypatch.setattr(huggingface_hub, "is_offline_mode", lambda: False)
        monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", lambda url, timeout: head)
        monkeypatch.setattr(huggingface_hub, "hf_hub_download", self.download)

    def download(self, repository: str, file: str, *, revision: str, local_dir: str, **options: Any) -> str:
        self.revisions.append(revision)
        path = Path(local_dir) / file
        path.write_text("half of the fi")
        if self.error is not None:
            raise self.error
        path.write_text("{}")
        return str(path)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file() and path.parent.name != "locks")


def test_the_named_folder_comes_before_the_variable_and_that_before_the_cache(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached, variable, named = put(cache / "data"), put(tmp_path / "variable"), put(tmp_path / "named")
    assert locate("chapterbreak", FILE, None) == Location(cached, "local")
    monkeypatch.setenv("CONTEXTLAB_DATA", str(tmp_path / "variable"))
    assert locate("chapterbreak", FILE, None) == Location(variable, "local")
    assert locate("chapterbreak", FILE, tmp_path / "named") == Location(named, "local")


def test_without_any_file_the_sample_is_used() -> None:
    assert locate("chapterbreak", FILE, None) == Location(None, "sample")
    assert locate("pg22", "books.jsonl", None) == Location(None, "sample")


@pytest.mark.parametrize("present", ["", "data", "data/chapterbreak"])
def test_a_named_folder_that_lacks_the_data_is_an_error_that_names_what_is_missing(
    tmp_path: Path, present: str
) -> None:
    (tmp_path / present).mkdir(parents=True, exist_ok=True)
    put(tmp_path / "cache" / "data")
    with pytest.raises(UserError, match=str(tmp_path / "data")) as error:
        locate("chapterbreak", FILE, tmp_path / "data")
    assert FILE in str(error.value)
    assert str(error.value).endswith(".")


@pytest.mark.parametrize(("ending", "compress"), [(".gz", gzip.compress), (".xz", lzma.compress)])
def test_packed_and_plain_files_are_the_same(ending: str, compress: Callable[[bytes], bytes], tmp_path: Path) -> None:
    raw = "Frost, 1 °C".encode()
    packed = put(tmp_path, compress(raw), FILE + ending)
    assert locate("chapterbreak", FILE, tmp_path).path == packed
    assert read(packed) == (raw.decode(), hashlib.sha256(packed.read_bytes()).hexdigest())
    plain = put(tmp_path, raw)
    assert locate("chapterbreak", FILE, tmp_path).path == plain
    assert read(plain) == (raw.decode(), hashlib.sha256(raw).hexdigest())
    plain.unlink()
    assert plain_or_packed(plain) == packed
    packed.rename(plain)
    assert plain_or_packed(packed) == plain


def test_a_download_is_kept_with_its_commit(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub(monkeypatch, "abc123")
    location = locate("chapterbreak", FILE, None)
    assert location == Location(cache / "data" / "chapterbreak" / FILE, "hub", "abc123")
    assert locate("chapterbreak", FILE, None) == location
    assert hub.revisions == ["abc123"]
    assert files(cache) == [FILE, FILE + ".revision"]


@pytest.mark.parametrize("error", [OSError("connection lost"), ValueError("not the hub's answer")])
def test_a_failed_download_leaves_nothing_and_falls_through(
    error: Exception, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Hub(monkeypatch, "abc123", error)
    assert locate("chapterbreak", FILE, None) == Location(None, "sample")
    assert files(cache) == []
    Hub(monkeypatch, None)
    assert locate("chapterbreak", FILE, None) == Location(None, "sample")


def test_a_full_disk_is_reported(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Hub(monkeypatch, "abc123", OSError(errno.ENOSPC, "no space"))
    with pytest.raises(UserError, match="disk is full"):
        locate("chapterbreak", FILE, None)
    assert files(cache) == []


def test_the_cache_is_where_the_platform_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CONTEXTLAB_CACHE")
    assert cache_dir().name == "contextlab"


@pytest.mark.parametrize(
    "content",
    [b"", b"not gzip", gzip.compress(b"text " * 99)[:-9], gzip.compress(b"\xff\xfe")],
    ids=["empty", "not packed", "cut off", "not UTF-8"],
)
def test_broken_files_are_named(tmp_path: Path, content: bytes) -> None:
    path = put(tmp_path, content, "broken.gz")
    if content:
        with pytest.raises(UserError, match=r"broken\.gz"):
            read(path)
    with pytest.raises(UserError, match="missing"):
        read(tmp_path / "missing.json")


def test_a_second_encoding_is_for_what_is_not_utf_8(tmp_path: Path) -> None:
    for content in ("caf\u00e9\n".encode(), "caf\u00e9\n".encode("latin-1")):
        path = put(tmp_path, content)
        assert read(path, "latin-1") == ("caf\u00e9\n", hashlib.sha256(content).hexdigest())
    path = put(tmp_path, b"one\ntwo\xff")
    assert read(path, "latin-1")[0] == "one\ntwo\u00ff"
    with pytest.raises(UserError, match=r"^Line 2 of .* is not UTF-8"):
        read(path)


def test_broken_json_and_missing_fields_are_named() -> None:
    with pytest.raises(UserError, match=r"^Line 2 of a\.json"):
        parse_json('{"a": 1,\n"b": }', Path("a.json"))
    with pytest.raises(UserError, match=r"^Line 7 of b\.jsonl"):
        parse_json("{", Path("b.jsonl"), 7)
    assert field({"a": "b"}, "a", str, "here") == "b"
    for record in ({}, {"a": 1}, {"a": ""}, [], None):
        with pytest.raises(UserError, match="Example 3 has no str in its field 'a'"):
            field(record, "a", str, "Example 3")


def test_a_json_file_is_its_value_and_the_digest_of_its_bytes(tmp_path: Path) -> None:
    content = b'{"a": [1,\n2]}'
    assert json_file(put(tmp_path, content)) == ({"a": [1, 2]}, hashlib.sha256(content).hexdigest())
    with pytest.raises(UserError, match=rf"^Line 2 of .*{FILE}"):
        json_file(put(tmp_path, b'{"a": [1,\n2}'))


def test_shuffling_depends_on_the_identity_alone() -> None:
    texts = ["b", "c", "d"]
    for identity in map(str, range(30)):
        candidates, answer = shuffled(identity, "a", texts)
        assert candidates[answer] == "a"
        assert sorted(candidates) == ["a", *texts]
        assert shuffled(identity, "a", texts) == (candidates, answer)
    assert {shuffled(str(i), "a", texts)[1] for i in range(30)} == {0, 1, 2, 3}


def test_tasks_and_data_import_without_torch() -> None:
    program = (
        "import sys, contextlab.benchmarks.tasks.chapterbreak, contextlab.benchmarks.tasks.pg22;"
        "import contextlab.benchmarks.data.sample;"
        "sys.exit(bool({'torch', 'transformers', 'numpy', 'huggingface_hub'} & sys.modules.keys()))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", program], env=environment, check=False).returncode == 0
