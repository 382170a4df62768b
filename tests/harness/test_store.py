from __future__ import annotations

import errno
import json
import math
from pathlib import Path
from typing import Any

import pytest

from contextlab.benchmarks.task import Part
from contextlab.errors import UserError
from contextlab.harness import store

IDENTITY: dict[str, Any] = {
    "method": "some/where/My Method.py:Class",
    "method_config": {"N": 4, "names": ["a"]},
    "task": "letters",
    "split": "ctx-4k",
    "context": "own",
    "history": None,
    "seed": 0,
}
LINES = [{"id": f"work/{n}", "record": {"nats": n / 3, "text": "é\n\u2028"}} for n in range(4)]


def write(out: Path, lines: list[dict[str, Any]]) -> Path:
    with store.open_run(out, IDENTITY, {}) as run:
        for line in lines:
            run.append(line)
        return run.folder


class FullDisk:
    """A file that takes some bytes and then no more."""

    def __init__(self, file: Any, room: int) -> None:
        self.file, self.room = file, room

    def write(self, text: bytes) -> int:
        if self.room == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = self.file.write(text[: self.room])
        self.room -= taken
        return taken

    def fileno(self) -> int:
        return self.file.fileno()


def test_run_id_is_readable_and_changes_with_every_ingredient() -> None:
    ids = {store.run_id(IDENTITY)} | {store.run_id({**IDENTITY, key: "changed"}) for key in IDENTITY}
    assert len(ids) == len(IDENTITY) + 1
    assert store.run_id(IDENTITY).startswith("my-method-py-class-letters-ctx-4k-")
    assert store.run_id(IDENTITY) == store.run_id(dict(reversed(IDENTITY.items())))


def test_run_id_sees_inside_nested_values() -> None:
    assert store.run_id(IDENTITY) != store.run_id({**IDENTITY, "method_config": {"N": 5, "names": ["a"]}})


def test_lines_come_back_in_order(tmp_path: Path) -> None:
    write(tmp_path, LINES[:2])
    folder = write(tmp_path, LINES[2:])
    with store.open_run(tmp_path, IDENTITY, {}) as run:
        assert list(run.lines.values()) == LINES
    assert [json.loads(line) for line in (folder / "examples.jsonl").read_bytes().splitlines()] == LINES


def test_lines_in_memory_are_those_on_disk(tmp_path: Path) -> None:
    with store.open_run(tmp_path, IDENTITY, {}) as run:
        run.append({"id": "a", "pair": (1, 2), "third": 1 / 3})
        kept = dict(run.lines)
    with store.open_run(tmp_path, IDENTITY, {}) as run:
        assert run.lines == kept == {"a": {"id": "a", "pair": [1, 2], "third": 1 / 3}}


def test_a_run_cut_at_any_byte_resumes_to_the_same_file(tmp_path: Path) -> None:
    path = write(tmp_path, LINES) / "examples.jsonl"
    whole = path.read_bytes()
    for cut in range(0, len(whole), 7):
        path.write_bytes(whole[:cut])
        with store.open_run(tmp_path, IDENTITY, {}) as run:
            assert list(run.lines.values()) == LINES[: whole[:cut].count(b"\n")]
            for line in LINES:
                if line["id"] not in run.lines:
                    run.append(line)
        assert path.read_bytes() == whole


@pytest.mark.parametrize("broken", [b"{", b"", b"[1]", b'"text"', b'{"record": 1}', b"\xff\xfe"])
def test_a_broken_line_is_named(tmp_path: Path, broken: bytes) -> None:
    path = write(tmp_path, LINES) / "examples.jsonl"
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([lines[0], broken, *lines[2:]]) + b"\n")
    with pytest.raises(UserError, match=rf"^Line 2 of {path} is broken"):
        write(tmp_path, [])
    assert path.read_bytes().splitlines()[1] == broken


def test_parts_are_read_without_holding_the_run(tmp_path: Path) -> None:
    nats = [Part(3.0, 2.0, "book")]
    lines = [
        {"id": "a", "quality": 1.5, "parts": {"nats": nats}, "record": {"work": "book"}},
        {"id": "b", "quality": None},
        {"id": "c"},
    ]
    with store.open_run(tmp_path, IDENTITY, {}) as run:
        for line in lines:
            run.append(line)
        assert store.parts(run.folder, 3) == {"a": {"nats": nats, "quality": [Part(1.5, 1.0, "book")]}}
    assert store.parts(tmp_path / "nothing", 3) == {}


def test_parts_are_those_of_the_examples_that_a_summary_is_about(tmp_path: Path) -> None:
    with store.open_run(tmp_path, IDENTITY, {}) as run:
        for number in range(4):
            run.append({"id": str(number), "quality": float(number)})
        found = store.parts(run.folder, 2)
    assert found == {name: {"quality": [Part(float(name), 1.0, name)]} for name in ("0", "1")}


def test_a_broken_line_is_named_where_parts_are_read(tmp_path: Path) -> None:
    folder = write(tmp_path, LINES)
    (folder / "examples.jsonl").write_text("{\n")
    with pytest.raises(UserError, match="Line 1"):
        store.parts(folder, 1)


@pytest.mark.parametrize(
    "changes",
    [
        {"quality": "high"},
        {"quality": math.nan},
        {"parts": [1]},
        {"parts": {"nats": 3}},
        {"parts": {"nats": [[1.0, 0.0, "a", ""]]}},
        {"parts": {"nats": [[1.0]]}},
        {"parts": {"nats": [[1.0, math.inf, "a", ""]]}},
        {"record": [1]},
    ],
)
def test_a_line_whose_parts_are_none_is_named(tmp_path: Path, changes: dict[str, Any]) -> None:
    with store.open_run(tmp_path, IDENTITY, {}) as run:
        run.append({"id": "seventh", "quality": 1.0, "record": {}, **changes})
        with pytest.raises(UserError, match="'seventh' is broken"):
            store.parts(run.folder, 1)


@pytest.mark.parametrize("name", ["manifest.json", "summary.json"])
def test_a_broken_file_is_named(tmp_path: Path, name: str) -> None:
    folder = write(tmp_path, LINES)
    (folder / name).write_text("{")
    with pytest.raises(UserError, match=name):
        write(tmp_path, [])


def test_a_run_is_held_by_one_process_at_a_time(tmp_path: Path) -> None:
    with (
        store.open_run(tmp_path, IDENTITY, {}) as run,
        pytest.raises(UserError, match="Another process"),
        store.open_run(tmp_path, IDENTITY, {}),
    ):
        pass
    with store.open_run(tmp_path, {**IDENTITY, "seed": 1}, {}), store.open_run(tmp_path, IDENTITY, {}):
        assert run.folder.parent == tmp_path


@pytest.mark.parametrize("room", [0, 1, 30])
def test_a_full_disk_loses_only_the_line_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    with store.open_run(tmp_path, IDENTITY, {}) as run:
        run.append(LINES[0])
        monkeypatch.setattr(run, "_file", FullDisk(run._file, room))
        with pytest.raises(UserError, match=r"no space left on device.*resume"):
            run.append(LINES[1])
    write(tmp_path, LINES[1:])
    with store.open_run(tmp_path, IDENTITY, {}) as run:
        assert list(run.lines.values()) == LINES


def test_a_summary_is_replaced_as_a_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with store.open_run(tmp_path, IDENTITY, {}) as run:
        run.append(LINES[0])
        run.finish({"n": 1})
    with store.open_run(tmp_path, IDENTITY, {}) as run, monkeypatch.context() as patch:
        assert run.summary == {"n": 1}
        patch.setattr(store.os, "replace", refuse)
        with pytest.raises(UserError, match="no space left"):
            run.finish({"n": 2})
    assert json.loads((run.folder / "summary.json").read_text()) == {"n": 1}
    assert sorted(path.name for path in run.folder.iterdir()) == ["examples.jsonl", "manifest.json", "summary.json"]


def test_a_summary_is_returned_as_it_can_be_read_back(tmp_path: Path) -> None:
    with store.open_run(tmp_path, IDENTITY, {}) as run:
        run.append(LINES[0])
        returned = run.finish({"method_config": {"weights": Path("a/b"), "sizes": (1, 2)}})
    assert returned == {"method_config": {"weights": "a/b", "sizes": [1, 2]}}
    assert json.loads((run.folder / "summary.json").read_text()) == returned == run.summary


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="choose another folder with --out"):
        write(tmp_path / "file" / "runs", [])


def test_an_error_of_the_caller_passes_unchanged(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="elsewhere"), store.open_run(tmp_path, IDENTITY, {}):
        raise FileNotFoundError("elsewhere")


def test_a_run_that_finished_nothing_leaves_nothing(tmp_path: Path) -> None:
    assert not write(tmp_path, []).exists()
    assert list(tmp_path.iterdir()) == []


def test_the_manifest_stays_that_of_the_first_start(tmp_path: Path) -> None:
    with store.open_run(tmp_path, IDENTITY, {"started": "first"}) as run:
        run.append(LINES[0])
    with store.open_run(tmp_path, IDENTITY, {"started": "second"}) as run:
        assert run.manifest["provenance"] == {"started": "first"}
        assert run.manifest["identity"] == IDENTITY
        assert run.manifest["run_id"] == run.folder.name
