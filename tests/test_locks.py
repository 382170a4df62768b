"""Locks hold against processes and threads, end with their process, and say where a file system has none."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import filelock
import pytest

from contextlab import locks
from contextlab.errors import UserError

HOLD = """
import sys, time
from pathlib import Path
from contextlab import locks
with locks.alone(Path(sys.argv[1]), "held"):
    print("mine", flush=True)
    time.sleep(60)
"""


def test_a_folder_is_held_by_one_thread_and_its_lock_vanishes(tmp_path: Path) -> None:
    sentences: list[str] = []
    folder = tmp_path / "folder"

    def other() -> None:
        try:
            with locks.alone(folder, "held"):
                sentences.append("mine")
        except UserError as error:
            sentences.append(str(error))

    def tried() -> None:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()

    with locks.alone(folder, "held"):
        tried()
        assert (folder / locks.NAME).exists()
    tried()
    assert sentences == ["held", "mine"]
    assert list(tmp_path.iterdir()) == []
    with locks.alone(folder, "held"):
        (folder / "file").write_text("kept")
    assert [path.name for path in folder.iterdir()] == ["file"]


def test_a_killed_process_holds_nothing(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "mine\n"
    with pytest.raises(UserError, match=r"^held$"), locks.alone(tmp_path, "held"):
        pass
    process.kill()
    process.wait()
    with locks.alone(tmp_path, "held"):
        pass


def test_never_are_two_in_one_folder(tmp_path: Path) -> None:
    inside, most, entered = 0, 0, 0
    guard, until = threading.Lock(), time.monotonic() + 1

    def enter() -> None:
        nonlocal inside, most, entered
        while time.monotonic() < until:
            try:
                with locks.alone(tmp_path, "held"):
                    with guard:
                        inside, entered = inside + 1, entered + 1
                        most = max(most, inside)
                    time.sleep(0.001)
                    with guard:
                        inside -= 1
            except UserError:
                time.sleep(0.0005)

    threads = [threading.Thread(target=enter) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most, inside) == (1, 0)
    assert entered > 4


@pytest.mark.parametrize("failing", [1, 2])
def test_a_folder_that_another_one_removes_is_created_again(
    failing: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mkdir, folder, calls = os.mkdir, tmp_path / "folder", 0

    def removed(path: Path, mode: int = 0o777) -> None:
        nonlocal calls
        calls += 1
        if calls == failing:
            with contextlib.suppress(FileNotFoundError):
                folder.rmdir()
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        mkdir(path, mode)

    monkeypatch.setattr(os, "mkdir", removed)
    with locks.alone(folder, "held"):
        assert folder.is_dir()
    assert calls > failing


@pytest.mark.parametrize("kind", ["file", "link to nothing"])
def test_what_is_no_folder_is_not_waited_for(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "path"
    if kind == "file":
        path.write_text("kept")
    else:
        path.symlink_to(tmp_path / "missing")
    with pytest.raises(FileExistsError):
        locks.alone(path, "held").__enter__()
    assert os.listdir(tmp_path) == ["path"]


def test_a_turn_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONTEXTLAB_CACHE", str(tmp_path))
    order: list[str] = []

    def second() -> None:
        with locks.held("a name"):
            order.append("second")

    with locks.held("a name"), locks.held("another name"):
        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(0.2)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


@pytest.mark.parametrize("error", [OSError(errno.ENOLCK, "No locks"), NotImplementedError("no flock"), None])
def test_a_file_system_without_locks_is_one_sentence(
    error: Exception | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONTEXTLAB_CACHE", str(tmp_path))

    def acquire(self: Any, **_: Any) -> None:
        if error is not None:
            raise error
        warnings.warn("no flock", stacklevel=2)
        self.__class__ = filelock.SoftFileLock

    monkeypatch.setattr(filelock.FileLock, "acquire", acquire)
    monkeypatch.setattr(filelock.SoftFileLock, "release", lambda *_, **__: None)
    with pytest.raises(UserError, match=r"is on a file system without locks: choose another folder with --out\.$"):
        locks.alone(tmp_path, "held").__enter__()
    with pytest.raises(UserError, match=r"is on a file system without locks: set CONTEXTLAB_CACHE\.$"):
        locks.held("a name").__enter__()


def test_a_cache_that_cannot_be_written_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CONTEXTLAB_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match=r"cannot be written .*: set CONTEXTLAB_CACHE\.$"), locks.held("a name"):
        pass
    assert os.listdir(tmp_path) == ["file"]
