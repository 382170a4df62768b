from __future__ import annotations

import contextlib
import hashlib
import http.server
import io
import os
import tarfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from contextlab.benchmarks.data import fetch as downloads
from contextlab.benchmarks.data.catalogue import ENTRIES, SETS
from contextlab.benchmarks.data.data_set import DataSet, Remote
from contextlab.benchmarks.data.fetch import download, fetch, get, read_sums
from contextlab.errors import UserError

CONTENT = bytes(range(256)) * 400
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Server(http.server.ThreadingHTTPServer):
    """Serves files from memory with ranges; closes the connection after `most` bytes of a response."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {"/set/a.bin": CONTENT}
        self.most, self.validator, self.requests = 10**9, '"v1"', list[tuple[str, str | None]]()
        # With two requests, a response waits in its middle for the other request.
        self.meeting: threading.Barrier | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.server.requests.append((self.path, wanted))
        assert self.headers["User-Agent"].startswith("contextlab/")
        if self.path.startswith("/moved"):
            self.send_response(302)
            self.send_header("Location", self.path.removeprefix("/moved"))
            self.send_header("X-Repo-Commit", "abc123")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if self.path not in self.server.files:
            self.send_error(404)
            return
        content = self.server.files[self.path]
        start = 0
        if wanted and self.headers.get("If-Range") == self.server.validator:
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
        if start and start >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        if self.server.validator:
            self.send_header("ETag", self.server.validator)
        self.end_headers()
        content = content[start : start + self.server.most]
        self.wfile.write(content[: len(content) // 2])
        if self.server.meeting is not None:
            with contextlib.suppress(threading.BrokenBarrierError):
                self.server.meeting.wait(0.3)
        self.wfile.write(content[len(content) // 2 :])

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CONTEXTLAB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def dataset(*remotes: Remote) -> DataSet:
    return DataSet("set", "", "", "", "", ("a.bin",), remotes=remotes)


def test_a_file_is_kept_once_under_its_sha256(server: Server, cache: Path) -> None:
    entry = dataset(Remote("a.bin", f"{server.url}/set/a.bin", f"sha256:{SHA256}"))
    assert list(fetch(entry)) == [("a.bin", SHA256)]
    kept, placed = cache / "objects" / SHA256, cache / "data" / "set" / "a.bin"
    assert kept.read_bytes() == placed.read_bytes() == CONTENT
    assert os.path.samefile(kept, placed)
    assert read_sums(placed.with_name("SHA256SUMS")) == {"a.bin": SHA256}
    assert list(fetch(entry)) == [("a.bin", SHA256)]
    assert len(server.requests) == 1
    placed.unlink()
    assert list(fetch(entry)) == [("a.bin", SHA256)]
    assert len(server.requests) == 1


def test_a_damaged_object_is_fetched_again(server: Server, cache: Path) -> None:
    entry = dataset(Remote("a.bin", f"{server.url}/set/a.bin", f"sha256:{SHA256}"))
    list(fetch(entry))
    kept = cache / "objects" / SHA256
    kept.chmod(0o644)
    kept.write_bytes(b"damaged")
    list(fetch(entry))
    assert kept.read_bytes() == (cache / "data" / "set" / "a.bin").read_bytes() == CONTENT
    assert kept.stat().st_mode & 0o222 == 0


def test_a_damaged_copy_is_replaced(server: Server, cache: Path) -> None:
    entry = dataset(Remote("a.bin", f"{server.url}/set/a.bin"))
    list(fetch(entry))
    placed = cache / "data" / "set" / "a.bin"
    placed.unlink()
    placed.write_bytes(b"damaged")
    list(fetch(entry))
    assert placed.read_bytes() == CONTENT
    assert [path.name for path in (cache / "objects").iterdir()] == [SHA256]


def test_a_download_goes_on_where_it_broke_off(server: Server, cache: Path) -> None:
    server.most = 30_000
    for received in (30_000, 60_000, 90_000):
        with pytest.raises(UserError, match=f"broke off after {received} of {len(CONTENT)} bytes"):
            download(f"{server.url}/set/a.bin")
    assert download(f"{server.url}/set/a.bin")[0].read_bytes() == CONTENT
    ranges = [wanted for _, wanted in server.requests]
    assert ranges == [None, "bytes=30000-", "bytes=60000-", "bytes=90000-"]
    assert [path.name for path in (cache / "objects").iterdir()] == [SHA256]


@pytest.mark.parametrize("validator", ['"v2"', "", 'W/"weak"'])
def test_a_file_that_may_have_changed_is_fetched_again(validator: str, server: Server) -> None:
    server.most = 30_000
    server.validator = '"v1"' if validator == '"v2"' else validator
    with pytest.raises(UserError, match="broke off"):
        download(f"{server.url}/set/a.bin")
    server.most, server.validator = 10**9, validator
    server.files["/set/a.bin"] = CONTENT[::-1]
    assert download(f"{server.url}/set/a.bin")[0].read_bytes() == CONTENT[::-1]


def test_a_part_that_is_already_whole_is_fetched_again(server: Server, cache: Path) -> None:
    url = f"{server.url}/set/a.bin"
    part = cache / "objects" / f"{hashlib.sha256(url.encode()).hexdigest()[:16]}.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(CONTENT)
    part.with_suffix(".validator").write_text('"v1"')
    assert download(url)[0].read_bytes() == CONTENT
    assert len(server.requests) == 2


@pytest.mark.parametrize("digest", ["sha256:" + "0" * 64, "md5:" + "0" * 32])
def test_another_file_than_the_published_one_is_refused(digest: str, server: Server, cache: Path) -> None:
    entry = dataset(Remote("a.bin", f"{server.url}/set/a.bin", digest))
    with pytest.raises(UserError, match="published"):
        list(fetch(entry))
    assert not any(path.is_file() for path in (cache / "data").rglob("*"))
    assert not list((cache / "objects").glob("*.part"))


def together(*calls: Callable[[], Any]) -> list[Any]:
    """The results of simultaneous calls."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]


@pytest.mark.parametrize("kind", ["sha256", "md5", "none"])
def test_downloads_of_one_file_at_the_same_time_do_not_disturb_each_other(
    kind: str, server: Server, cache: Path
) -> None:
    digest = None if kind == "none" else f"{kind}:{hashlib.new(kind, CONTENT).hexdigest()}"
    server.meeting = threading.Barrier(2)
    kept = together(*[lambda: download(f"{server.url}/set/a.bin", digest)] * 3)
    assert [path.read_bytes() for path, _ in kept] == [CONTENT] * 3
    assert [path.name for path in (cache / "objects").iterdir()] == [SHA256]


def test_a_set_that_is_fetched_twice_at_the_same_time_is_whole_and_noted(server: Server, cache: Path) -> None:
    names = [f"{n}.bin" for n in range(6)]
    server.files |= {f"/set/{name}": CONTENT + name.encode() for name in names}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tape:
        for name in names:
            member = tarfile.TarInfo(f"deep/{name}")
            member.size = len(CONTENT)
            tape.addfile(member, io.BytesIO(CONTENT))
    server.files["/set.tar.gz"] = packed.getvalue()
    remotes = [Remote(name, f"{server.url}/set/{name}") for name in names]
    remotes.append(Remote("set.tar.gz", f"{server.url}/set.tar.gz", unpack=""))
    server.meeting = threading.Barrier(2)
    first, second, _ = together(
        lambda: list(fetch(dataset(*remotes))),
        lambda: list(fetch(dataset(*reversed(remotes)))),
        lambda: list(fetch(dataset(*remotes[3:]))),
    )
    assert sorted(first) == sorted(second)
    folder = cache / "data" / "set"
    sums = read_sums(folder / "SHA256SUMS")
    assert sums.keys() == {*names, "set.tar.gz", *(f"deep/{name}" for name in names)}
    for name, sha256 in sums.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == sha256
    assert not list(folder.rglob(".*"))


def test_a_fetch_that_is_left_in_its_middle_does_not_hold_up_another(server: Server) -> None:
    entry = dataset(Remote("a.bin", f"{server.url}/set/a.bin"), Remote("b.bin", f"{server.url}/set/a.bin"))
    left = fetch(entry)
    next(left)
    assert len(list(fetch(entry))) == 2


def test_a_redirection_keeps_the_commit(server: Server, cache: Path) -> None:
    assert list(fetch(dataset(Remote("a.bin", f"{server.url}/moved/set/a.bin"))))
    sha256 = hashlib.sha256((cache / "data" / "set" / "a.bin").read_bytes()).hexdigest()
    assert (cache / "data" / "set" / "a.bin.revision").read_text() == f"abc123 {sha256}\n"


def test_without_a_network_one_sentence_says_what_to_do(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = dataset(Remote("a.bin", "http://127.0.0.1:9/set/a.bin"))
    with pytest.raises(UserError, match="cannot be reached") as error:
        list(fetch(entry))
    assert str(cache / "data" / "set" / "a.bin") in str(error.value)
    assert "\n" not in str(error.value)
    monkeypatch.setattr(huggingface_hub, "is_offline_mode", lambda: True)
    with pytest.raises(UserError, match="HF_HUB_OFFLINE"):
        list(fetch(entry))


def test_a_refusal_is_reported(server: Server) -> None:
    with pytest.raises(UserError, match=r"was refused \(404"):
        list(fetch(dataset(Remote("b.bin", f"{server.url}/set/b.bin"))))


def test_a_mirror_is_a_folder_or_an_address(server: Server, tmp_path: Path, cache: Path) -> None:
    entry = dataset(Remote("a.bin", "http://127.0.0.1:9/elsewhere"))
    assert list(fetch(entry, f"{server.url}/")) == [("a.bin", SHA256)]
    (tmp_path / "mirror" / "set").mkdir(parents=True)
    (tmp_path / "mirror" / "set" / "a.bin").write_bytes(b"other")
    (cache / "data" / "set" / "a.bin").unlink()
    assert list(fetch(entry, str(tmp_path / "mirror"))) == [("a.bin", hashlib.sha256(b"other").hexdigest())]
    with pytest.raises(UserError, match="There is no folder"):
        list(fetch(entry, str(tmp_path / "nowhere")))


def test_an_archive_is_unpacked_and_its_files_are_noted(server: Server, cache: Path) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tape:
        member = tarfile.TarInfo("top/deep/a.bin")
        member.size = len(CONTENT)
        tape.addfile(member, io.BytesIO(CONTENT))
    server.files["/set.tar.gz"] = packed.getvalue()
    list(fetch(dataset(Remote("set.tar.gz", f"{server.url}/set.tar.gz", unpack="top"))))
    assert (cache / "data" / "set" / "deep" / "a.bin").read_bytes() == CONTENT
    assert read_sums(cache / "data" / "set" / "SHA256SUMS")["deep/a.bin"] == SHA256


def test_a_list_leads_to_its_files_and_not_elsewhere(server: Server, cache: Path) -> None:
    server.files |= {"/list.txt": b"set/a.bin\n", "/evil.txt": b"../../a.bin\n"}
    paths = [path for path, _ in fetch(dataset(Remote("list.txt", f"{server.url}/list.txt", listed=server.url)))]
    assert paths == ["list.txt", "set/a.bin"]
    with pytest.raises(UserError, match="no path inside"):
        list(fetch(dataset(Remote("evil.txt", f"{server.url}/evil.txt", listed=server.url))))


def test_too_much_is_refused(server: Server, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.setattr(downloads, "MOST_BYTES", 1000)
    with pytest.raises(UserError, match="larger than 1000 bytes"):
        download(f"{server.url}/set/a.bin")
    with pytest.raises(UserError, match="larger than 10 bytes"):
        get(f"{server.url}/set/a.bin", 10)


def test_get_distinguishes_a_missing_file_from_a_missing_server(server: Server, tmp_path: Path) -> None:
    assert get(f"{server.url}/set/a.bin") == CONTENT
    assert get(f"{server.url}/set/none") is None
    assert get((tmp_path / "none").as_uri()) is None
    with pytest.raises(OSError, match="refused"):
        get("http://127.0.0.1:9/")


def test_the_catalogue_is_sound() -> None:
    assert len(SETS) == len(ENTRIES)
    for entry in ENTRIES:
        assert all((entry.about, entry.source, entry.licence, entry.size, entry.files))
        assert entry.remotes or entry.otherwise
        for remote in entry.remotes:
            assert remote.url.startswith("https://")
            kind, _, digest = (remote.digest or "sha256:" + "0" * 64).partition(":")
            assert len(digest) == hashlib.new(kind).digest_size * 2
            assert set(digest) <= set("0123456789abcdef")
            assert ".." not in remote.path
