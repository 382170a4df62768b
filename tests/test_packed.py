"""Packed files are unpacked up to a limit, which a user can raise."""

from __future__ import annotations

import gzip
import lzma
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from contextlab import packed
from contextlab.errors import UserError

PACKERS: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.compress, ".xz": lzma.compress, "": bytes}


@pytest.mark.parametrize("ending", PACKERS)
def test_what_is_unpacked_is_what_was_packed(ending: str, tmp_path: Path) -> None:
    content = os.urandom(70_000) + b"\nline\n" * 1000
    path = tmp_path / f"file{ending}"
    path.write_bytes(PACKERS[ending](content))
    assert packed.content(path) == content
    with packed.opened(path) as file:
        assert b"".join(file) == content
    with packed.opened(path) as file:
        assert b"".join(iter(lambda: file.read(1000), b"")) == content


@pytest.mark.parametrize("ending", [".gz", ".xz"])
def test_more_than_the_limit_is_refused_with_the_way_to_raise_it(
    ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"bomb{ending}"
    path.write_bytes(PACKERS[ending](bytes(65 * 2**20)))
    assert path.stat().st_size < 2**17
    with pytest.raises(UserError, match=rf"unpacks to more than 64 MiB.*set {packed.SETTING}") as error:
        packed.content(path)
    assert str(path) in str(error.value)
    with pytest.raises(UserError, match="unpacks to more"), packed.opened(path) as file:
        list(file)
    monkeypatch.setenv(packed.SETTING, "65")
    assert len(packed.content(path)) == 65 * 2**20
    monkeypatch.setenv(packed.SETTING, "many")
    with pytest.raises(UserError, match="set it to a number of MiB"):
        packed.content(path)


def test_texts_are_far_from_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "file.gz"
    with path.open("wb") as file:
        os.truncate(file.fileno(), 2**20)
    assert packed.limit(path) == 100 * 2**20
    os.truncate(path, 2**30)
    assert packed.limit(path) == packed.MOST


@pytest.mark.parametrize("ending", [".gz", ".xz"])
@pytest.mark.parametrize("damage", [lambda c: c[:-9], lambda c: b"none" + c, lambda c: c[:20] + b"\xff" * 9 + c[29:]])
def test_a_broken_file_is_broken(ending: str, damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path = tmp_path / f"file{ending}"
    path.write_bytes(damage(PACKERS[ending](os.urandom(5000))))
    with pytest.raises(packed.BrokenPack):
        packed.content(path)


def test_what_is_packed_here_is_unpacked_and_has_nothing_of_the_time_in_it(tmp_path: Path) -> None:
    content = os.urandom(5000) + b"line\n" * 1000
    path = tmp_path / "file.xz"
    path.write_bytes(packed.packed(content))
    assert packed.unpacked(path) == packed.content(path) == content
    assert packed.packed(content) == path.read_bytes()
    for damage in (path.read_bytes() + b"\0", path.read_bytes()[:-1], b"x" + path.read_bytes()):
        path.write_bytes(damage)
        with pytest.raises(packed.BrokenPack):
            packed.unpacked(path)


def test_what_was_packed_here_is_unpacked_up_to_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bomb.xz"
    path.write_bytes(packed.packed(bytes(2**20)))
    monkeypatch.setenv(packed.SETTING, "1")
    assert packed.unpacked(path) == bytes(2**20)
    path.write_bytes(packed.packed(bytes(2**20 + 1)))
    with pytest.raises(UserError, match="unpacks to more than 1 MiB"):
        packed.unpacked(path)
