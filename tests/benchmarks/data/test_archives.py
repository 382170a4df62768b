from __future__ import annotations

import io
import stat
import tarfile
import warnings
import zipfile
from pathlib import Path
from typing import Any

import pytest
from damage import cut, flip, insert, rounds
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contextlab import harmless
from contextlab.benchmarks.data.archives import unpack
from contextlab.errors import UserError

FILES = {"set/a.txt": b"one", "set/deep/b.txt": b"two" * 1000}


def write_tar(path: Path, files: dict[str, bytes], **odd: Any) -> Path:
    with tarfile.open(path, "w:gz") as tape:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            for key, value in odd.items():
                setattr(member, key, value)
            tape.addfile(member, io.BytesIO(content))
    return path


def write_zip(path: Path, files: dict[str, bytes], mode: int = stat.S_IFREG | 0o644) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr = mode << 16
            packed.writestr(entry, content, zipfile.ZIP_DEFLATED)
    return path


def everything(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("write", [write_tar, write_zip])
def test_an_archive_is_unpacked_without_its_leading_folder(write: Any, tmp_path: Path) -> None:
    archive, folder = write(tmp_path / "archive", FILES), tmp_path / "out"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "b.txt").write_text("older")
    (folder / "mine.txt").write_text("stays")
    assert sorted(unpack(archive, folder, "set")) == ["a.txt", "deep/b.txt"]
    assert everything(folder) == {"a.txt": b"one", "deep/b.txt": b"two" * 1000, "mine.txt": b"stays"}
    assert sorted(unpack(archive, tmp_path / "whole")) == sorted(FILES)


def members(write: Any, path: Path, names: list[str]) -> Path:
    """An archive with members of these names, which may be the same."""
    if write is write_tar:
        with tarfile.open(path, "w:gz") as tape:
            for name in names:
                tape.addfile(tarfile.TarInfo(name), io.BytesIO())
        return path
    with zipfile.ZipFile(path, "w") as packed, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in names:
            packed.writestr(zipfile.ZipInfo(name), b"")
    return path


@pytest.mark.parametrize("write", [write_tar, write_zip])
@pytest.mark.parametrize("again", ["set/a.txt", "a.txt", "set/./a.txt", "set//a.txt"])
def test_a_file_that_comes_twice_is_refused_and_nothing_is_unpacked(write: Any, again: str, tmp_path: Path) -> None:
    archive = members(write, tmp_path / "archive", ["set/a.txt", "set/b.txt", again])
    with pytest.raises(UserError, match="twice"):
        unpack(archive, tmp_path / "out", "set")
    assert everything(tmp_path / "out") == {}


@pytest.mark.parametrize("write", [write_tar, write_zip])
@pytest.mark.parametrize("name", ["", ".", "./", "set"])
def test_a_file_without_a_name_is_refused_and_nothing_is_unpacked(write: Any, name: str, tmp_path: Path) -> None:
    archive = members(write, tmp_path / "archive", ["set/a.txt", name])
    if write is write_zip and name.endswith("/"):
        assert unpack(archive, tmp_path / "out", "set") == ["a.txt"]
        return
    with pytest.raises(UserError, match="no plain file inside one folder"):
        unpack(archive, tmp_path / "out", "set")
    assert everything(tmp_path / "out") == {}


@pytest.mark.parametrize("write", [write_tar, write_zip])
@pytest.mark.parametrize("obstacle", ["a.txt/folder", "deep"])
def test_what_is_in_the_way_stays_and_nothing_is_unpacked(write: Any, obstacle: str, tmp_path: Path) -> None:
    archive, folder = write(tmp_path / "archive", FILES), tmp_path / "out"
    (folder / obstacle).parent.mkdir(parents=True)
    (folder / obstacle).write_text("mine")
    with pytest.raises(UserError, match="is in the way"):
        unpack(archive, folder, "set")
    assert everything(folder) == {obstacle: b"mine"}


@pytest.mark.parametrize("write", [write_tar, write_zip])
def test_damaged_archives_are_unpacked_or_refused_in_one_sentence(write: Any, tmp_path: Path) -> None:
    whole = write(tmp_path / "archive", FILES).read_bytes()
    tried = refused = 0
    for draw in rounds(150, 0.1, write.__name__):
        (tmp_path / "archive").write_bytes(draw.choice((cut, flip, insert))(whole, draw))
        folder = tmp_path / f"out{tried}"
        tried += 1
        try:
            unpack(tmp_path / "archive", folder, "set", most_bytes=10**6)
        except UserError as error:
            refused += 1
            message = str(error)
            assert str(tmp_path / "archive") in message
            harmless.line(message).encode()
            assert everything(folder) == {}
    assert refused > tried / 4
    print(f"archives: {tried} tried, {refused} refused")


@pytest.mark.parametrize("write", [write_tar, write_zip])
@pytest.mark.parametrize("name", ["../x", "set/../../x", "/etc/x", "C:x", "..\\x", "set/c:/x"])
def test_a_name_that_leads_out_is_refused_and_nothing_is_unpacked(write: Any, name: str, tmp_path: Path) -> None:
    archive = write(tmp_path / "archive", {**FILES, name: b"evil"})
    with pytest.raises(UserError, match="no plain file inside one folder"):
        unpack(archive, tmp_path / "out", "set")
    assert everything(tmp_path / "out") == {}
    assert {path.name for path in tmp_path.iterdir()} == {"archive", "out"}


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_links_and_devices_are_refused(kind: bytes, tmp_path: Path) -> None:
    archive = write_tar(tmp_path / "archive", {"set/link": b""}, type=kind, linkname="a.txt")
    with pytest.raises(UserError, match="'set/link'"):
        unpack(archive, tmp_path / "out")
    packed = write_zip(tmp_path / "archive.zip", {"set/link": b"a.txt"}, stat.S_IFLNK | 0o777)
    with pytest.raises(UserError, match="'set/link'"):
        unpack(packed, tmp_path / "out")
    assert everything(tmp_path / "out") == {}


@pytest.mark.parametrize("write", [write_tar, write_zip])
def test_limits_hold_for_what_is_unpacked(write: Any, tmp_path: Path) -> None:
    bomb = write(tmp_path / "archive", {"a": b"\0" * 2_000_000, "b": b""})
    assert bomb.stat().st_size < 10_000
    for limits in ({"most_bytes": 1_999_999}, {"most_files": 1}):
        with pytest.raises(UserError, match="refused"):
            unpack(bomb, tmp_path / "out", **limits)
    assert everything(tmp_path / "out") == {}
    assert unpack(bomb, tmp_path / "out", most_bytes=2_000_000, most_files=2) == ["a", "b"]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), zipped=st.booleans())
def test_a_damaged_archive_unpacks_to_its_files_or_to_nothing(data: Any, zipped: bool, tmp_path: Path) -> None:
    content = (write_zip if zipped else write_tar)(tmp_path / "archive", FILES).read_bytes()
    position = data.draw(st.integers(0, len(content) - 1))
    cut = data.draw(st.booleans())
    changed = bytes([content[position] ^ 0x55]) + content[position + 1 :]
    damaged = content[:position] + (b"" if cut else changed)
    (tmp_path / "damaged").write_bytes(damaged)
    folder = tmp_path / f"out-{zipped}-{cut}-{position}"
    try:
        unpack(tmp_path / "damaged", folder)
    except UserError:
        assert everything(folder) == {}
