"""Files are there as a whole or not at all, whatever happens while they are written."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextlab import files
from contextlab.files import Journal


@given(st.binary())
def test_the_digest_is_that_of_the_content(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("files") / "file"
    path.write_bytes(content)
    assert files.sha256(path) == hashlib.sha256(content).hexdigest()


@given(st.text(st.characters(codec="utf-8")) | st.binary(), st.binary())
def test_a_file_takes_the_place_of_what_was_there(
    tmp_path_factory: pytest.TempPathFactory, first: str | bytes, second: bytes
) -> None:
    path = tmp_path_factory.mktemp("files") / "file"
    for content in (first, second):
        files.write(path, content)
        assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("broken", ["fsync", "replace"])
def test_what_cannot_be_written_leaves_the_earlier_file_alone(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "value"
    files.write(path, "good")

    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, broken, full)
    with pytest.raises(OSError, match="no space left"):
        files.write(path, "new")
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    assert path.read_text() == "good"


def test_permissions_are_those_of_any_new_file(tmp_path: Path) -> None:
    for mask in (0o022, 0o077, 0o002):
        before = os.umask(mask)
        try:
            files.write(tmp_path / "file", "x")
            with files.new_folder(tmp_path / f"folder{mask}") as fresh:
                files.write(fresh / "file", "x")
        finally:
            os.umask(before)
        assert (tmp_path / "file").stat().st_mode & 0o777 == 0o666 & ~mask
        assert (tmp_path / f"folder{mask}").stat().st_mode & 0o777 == 0o777 & ~mask


def test_a_link_stays_and_what_it_points_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "deep/file")
    for text in ("one", "two"):
        files.write(tmp_path / "link", text)
        assert (tmp_path / "deep/file").read_text() == text
    assert (tmp_path / "link").is_symlink()


def test_a_device_is_written_itself() -> None:
    files.write(Path(os.devnull), "x")
    assert not Path(os.devnull).is_file()


def test_a_folder_is_there_when_it_is_whole(tmp_path: Path) -> None:
    with files.new_folder(tmp_path / "above/target") as fresh:
        (fresh / "file").write_text("x")
        assert not (tmp_path / "above/target").exists()
    assert (tmp_path / "above/target/file").read_text() == "x"
    with pytest.raises(ValueError, match="half"), files.new_folder(tmp_path / "above/second"):
        raise ValueError("half done")
    assert [path.name for path in (tmp_path / "above").iterdir()] == ["target"]


def test_partial_folders_of_killed_processes_are_swept_after_an_hour(tmp_path: Path) -> None:
    old, new = tmp_path / ".partial-old", tmp_path / ".partial-new"
    for folder in (old, new):
        folder.mkdir()
    os.utime(old, (time.time() - 2 * files.ABANDONED,) * 2)
    with files.new_folder(tmp_path / "target"):
        pass
    assert (old.exists(), new.exists()) == (False, True)


KILLED = """
import os, sys
from pathlib import Path
from contextlab import files

calls, at = 0, int(sys.argv[2])
def counted(function):
    def call(*arguments, **named):
        global calls
        calls += 1
        if calls == at:
            os.kill(os.getpid(), 9)
        return function(*arguments, **named)
    return call
for name in ("open", "fsync", "replace", "close"):
    setattr(os, name, counted(getattr(os, name)))
files.write(Path(sys.argv[1]), b"new" * 100_000)
"""


def test_a_kill_at_any_step_leaves_one_whole_file(tmp_path: Path) -> None:
    path, seen = tmp_path / "file", set()
    for step in range(1, 16):
        path.write_bytes(b"good")
        code = subprocess.run([sys.executable, "-c", KILLED, str(path), str(step)], check=False).returncode
        seen.add((code, path.read_bytes()[:4]))
        assert path.read_bytes() in (b"good", b"new" * 100_000)
    assert seen == {(-9, b"good"), (-9, b"newn"), (0, b"newn")}


def test_a_journal_grows_and_is_cut_to_what_is_known(tmp_path: Path) -> None:
    with Journal(tmp_path / "file") as journal:
        journal.append(b"one\n")
        journal.write(b"two\n")
        assert journal.length == 8
    with Journal(tmp_path / "file", 4) as journal:
        assert journal.length == 4
        journal.append(b"three\n")
    with Journal(tmp_path / "file", 100) as journal:
        assert journal.length == 10
    assert (tmp_path / "file").read_bytes() == b"one\nthree\n"


@pytest.mark.parametrize(
    ("number", "room"), [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EACCES, False), (errno.EROFS, False)]
)
def test_more_room_is_asked_for_only_where_it_helps(number: int, room: bool) -> None:
    sentence = str(files.unwritable("/x", OSError(number, os.strerror(number)), "choose another folder with --out"))
    assert ("make room" in sentence) == room
    assert sentence.startswith("/x cannot be written (")
    assert sentence.endswith("choose another folder with --out.")


def test_a_line_that_the_disk_takes_in_pieces_is_whole(tmp_path: Path) -> None:
    class Slow:
        """Takes at most three bytes at one time, as a full disk may, without an error."""

        def __init__(self, file: Any) -> None:
            self.file = file

        def write(self, content: bytes) -> int:
            return int(self.file.write(content[:3]))

        def __getattr__(self, name: str) -> Any:
            return getattr(self.file, name)

    journal = files.Journal(tmp_path / "file")
    file = journal._file
    journal._file = Slow(file)  # type: ignore[assignment]
    for line in (b"one\n", b"", b"another line\n"):
        journal.write(line)
    journal._file = file
    journal.close()
    assert (tmp_path / "file").read_bytes() == b"one\nanother line\n"
    assert journal.length == len(b"one\nanother line\n")


@given(st.text())
def test_a_slug_has_lower_case_letters_digits_and_hyphens_and_is_its_own(text: str) -> None:
    slug = files.slug(text)
    assert re.fullmatch(r"([a-z0-9]+(-[a-z0-9]+)*)?", slug)
    assert files.slug(slug) == slug
