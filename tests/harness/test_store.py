from __future__ import annotations

import errno
import json
import math
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stored_runs import json_lines, line_of, result

from contextlab import seals
from contextlab.benchmarks.task import Part
from contextlab.errors import UserError
from contextlab.harness import store
from contextlab.harness.stored import ExampleLine, Manifest

IDENTITY: dict[str, Any] = {
    "method": "some/where/My Method.py:Class",
    "method_config": {"N": 4, "names": ["a"]},
    "task": "letters",
    "split": "ctx-4k",
    "context": "own",
    "history": None,
    "seed": 0,
}
RESULT = result(data={"examples": 1})
STARTED = RESULT.provenance


def line(identity: str, quality: float | None = None, **more: Any) -> ExampleLine:
    return ExampleLine.model_validate(line_of(identity, quality, **{"record": {}, **more}))


COST = {"flops": 5, "peak_bytes": None, "seconds": 1.5, "tokens": 3, "largest_bytes": 9, "joules": 0.1}
STATE = {"bytes": 8, "floats": 2, "tokens": 3, "cached": 3, "bytes_formula": 8}
LINES = [line(f"work/{n}", n / 3, index=n, record={"nats": n / 3, "text": "é\n\u2028"}) for n in range(4)]


def write(out: Path, lines: list[ExampleLine]) -> Path:
    with store.open_run(out, IDENTITY, STARTED) as run:
        for each in lines:
            run.append(each)
        return run.folder


class FullDisk:
    """A file on a disk with little free space."""

    def __init__(self, file: Any, room: int) -> None:
        self.file, self.room = file, room

    def write(self, text: bytes) -> int:
        if self.room == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = self.file.write(text[: self.room])
        self.room -= written
        return written

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
    with store.open_run(tmp_path, IDENTITY, STARTED) as run:
        assert list(run.lines.values()) == LINES
    assert store.lines(folder) == LINES


def test_lines_in_memory_are_those_on_disk(tmp_path: Path) -> None:
    stored_line = line("a", 1 / 3, more=[1, 2], parts={"nats": [[1, 3, "a"]]}, cost={"query": COST}, state=STATE)
    with store.open_run(tmp_path, IDENTITY, STARTED) as run:
        run.append(stored_line)
        kept = dict(run.lines)
    with store.open_run(tmp_path, IDENTITY, STARTED) as run:
        assert run.lines == kept == {"a": stored_line}


def test_a_run_cut_at_any_byte_resumes_to_the_same_file(tmp_path: Path) -> None:
    path = write(tmp_path, LINES) / "examples.jsonl"
    whole = path.read_bytes()
    for cut in range(0, len(whole), 7):
        path.write_bytes(whole[:cut])
        with store.open_run(tmp_path, IDENTITY, STARTED) as run:
            assert list(run.lines.values()) == LINES[: whole[:cut].count(b"\n")]
            for each in LINES:
                if each.id not in run.lines:
                    run.append(each)
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
    first = line("a", 1.5, parts={"nats": nats}, record={"work": "book"})
    with store.open_run(tmp_path, IDENTITY, STARTED) as run:
        for each in (first, line("b", index=1), line("c", 2.0, index=2)):
            run.append(each)
        assert store.parts(run.folder, 2) == {"a": {"nats": nats, "quality": [Part(1.5, 1.0, "book")]}}
    assert store.parts(tmp_path / "nothing", 3) == {}


def test_parts_are_those_of_the_examples_that_a_summary_is_about(tmp_path: Path) -> None:
    """In any order of finishing: the example of a deleted line runs again, after the others."""
    with store.open_run(tmp_path, IDENTITY, STARTED) as run:
        for index in (3, 1, 0, 2):
            run.append(line(str(index), float(index), index=index))
        parts = store.parts(run.folder, 2)
        assert parts == {name: {"quality": [Part(float(name), 1.0, name)]} for name in ("1", "0")}
        assert len(store.parts(run.folder, 4)) == 4


def test_parts_of_runs_without_indices_are_the_first_ones(tmp_path: Path) -> None:
    early = [{**line_of(str(n), float(n)), "index": None} for n in (0, 1, 2, 3, 0)]
    del early[1]["index"]
    (tmp_path / "examples.jsonl").write_text(json_lines(*early))
    assert [list(store.parts(tmp_path, n)) for n in (1, 2)] == [["0"], ["0", "1"]]
    assert [each.index for each in store.lines(tmp_path)] == [0, 1, 2, 3]


@given(st.integers(0, 500))
def test_a_last_line_that_is_not_whole_is_no_line(cut: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder), LINES) / "examples.jsonl"
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) - cut])
        left = store.lines(path.parent)
    assert left == LINES[: whole[: len(whole) - cut].count(b"\n")]


@pytest.mark.parametrize(
    "change",
    [{"id": 3}, {"record": []}, {"quality": "1"}, {"quality": True}, {"cost": {"query": {}}}, {"index": -1}],
)
def test_a_line_with_other_fields_is_named(tmp_path: Path, change: dict[str, Any]) -> None:
    path = write(tmp_path, LINES) / "examples.jsonl"
    path.write_text(json_lines({**LINES[0].as_json(), **change}))
    for reads in (lambda: write(tmp_path, []), lambda: store.parts(path.parent, 1)):
        with pytest.raises(UserError, match=rf"^Line 1 of {path} is broken \({next(iter(change))}"):
            reads()


def test_a_line_that_was_changed_after_it_was_written_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, LINES) / "examples.jsonl"
    text = path.read_text()
    path.write_text(text.replace('"quality": 0.3333', '"quality": 0.4333'))
    with pytest.raises(UserError, match=rf"^Line 2 of {path} is broken \(its seal is broken"):
        write(tmp_path, [])


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
        {"record": {"nats": [math.nan]}},
        {"record": {"nats": 10**400}},
    ],
)
def test_a_line_whose_parts_are_none_is_named(tmp_path: Path, changes: dict[str, Any]) -> None:
    (tmp_path / "examples.jsonl").write_text(json_lines({**line_of("seventh", 1.0), **changes}))
    with pytest.raises(UserError, match=rf"Line 1 of .* is broken \({next(iter(changes))}"):
        store.parts(tmp_path, 1)


@pytest.mark.parametrize("name", ["manifest.json", "summary.json"])
@pytest.mark.parametrize("content", ["{", "[]", "{}", "null", "[" * 100_000, '{"schema": 3}'])
def test_a_broken_file_is_named(tmp_path: Path, name: str, content: str) -> None:
    folder = write(tmp_path, LINES)
    (folder / name).write_text(content)
    with pytest.raises(UserError, match=f"{name} is broken"):
        write(tmp_path, [])


METRIC = {"value": 1.0, "low": None, "high": None, "n": 1}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(
            ("metrics", value)
            for value in ({}, [], {"accuracy": {**METRIC, "value": float("nan")}}, {"a": METRIC | {"n": -1}})
        ),
        *(("data", {**RESULT.data.as_json(), "examples": value}) for value in (-1, True, "1", None, 2**63)),
        *(("cost", value) for value in (None, {"query": {}}, {"query": 3})),
        *((name, None) for name in ("method", "task", "backbone", "provenance", "method_config")),
        *(
            ("provenance", {**STARTED.as_json(), name: math.inf})
            for name in ("contextlab", "commit", "seed", "threads")
        ),
        *(("changed", value) for value in (-math.inf, ["N", 3])),
        *((name, math.nan) for name in ("twin", "untrained", "max_context", "measured", "tokens", "measure")),
        ("provenance", {**STARTED.as_json(), "seed": 10**20}),
        ("method_config", {"N": [math.inf]}),
        ("state", {"bytes": 1.5, "floats": 1, "tokens": 1}),
    ],
)
def test_a_summary_with_other_fields_is_named(tmp_path: Path, field: str, value: Any) -> None:
    """Also under a right seal, and in a run of schema 1, which has none."""
    path = tmp_path / "summary.json"
    seals.write(path, RESULT.as_json())
    assert store.read_result(tmp_path) == RESULT.placed(tmp_path)
    changed = {**RESULT.as_json(), field: value}
    for content in (seals.sealed(changed), json.dumps({**changed, "schema": 1})):
        path.write_text(content)
        with pytest.raises(UserError, match=rf"summary\.json is broken \({field}.*: delete it"):
            store.read_result(tmp_path)


def test_what_a_later_version_adds_is_kept(tmp_path: Path) -> None:
    later = RESULT.model_copy(update={"more": [1]})
    seals.write(tmp_path / "summary.json", later.as_json())
    assert store.read_result(tmp_path).as_json()["more"] == [1]


def test_a_run_is_held_by_one_process_at_a_time(tmp_path: Path) -> None:
    with (
        store.open_run(tmp_path, IDENTITY, STARTED) as run,
        pytest.raises(UserError, match="Another process"),
        store.open_run(tmp_path, IDENTITY, STARTED),
    ):
        pass
    with store.open_run(tmp_path, {**IDENTITY, "seed": 1}, STARTED), store.open_run(tmp_path, IDENTITY, STARTED):
        assert run.folder.parent == tmp_path


@pytest.mark.parametrize("room", [0, 1, 30])
def test_a_full_disk_loses_only_the_line_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    with store.open_run(tmp_path, IDENTITY, STARTED) as run:
        run.append(LINES[0])
        with monkeypatch.context() as patch:
            patch.setattr(run.journal, "_file", FullDisk(run.journal._file, room))
            with pytest.raises(UserError, match=r"no space left on device.*resume"):
                run.append(LINES[1])
    write(tmp_path, LINES[1:])
    with store.open_run(tmp_path, IDENTITY, STARTED) as run:
        assert list(run.lines.values()) == LINES


def test_a_summary_is_replaced_as_a_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with store.open_run(tmp_path, IDENTITY, STARTED) as run:
        run.append(LINES[0])
        run.finish(RESULT)
    with store.open_run(tmp_path, IDENTITY, STARTED) as run, monkeypatch.context() as patch:
        assert run.summary == RESULT.placed(run.folder)
        patch.setattr("os.replace", refuse)
        with pytest.raises(UserError, match="no space left"):
            run.finish(RESULT.model_copy(update={"split": "other"}))
    assert store.read_result(run.folder) == RESULT.placed(run.folder)
    assert sorted(path.name for path in run.folder.iterdir()) == ["examples.jsonl", "manifest.json", "summary.json"]


def test_a_summary_is_returned_as_it_can_be_read_back(tmp_path: Path) -> None:
    with store.open_run(tmp_path, IDENTITY, STARTED) as run:
        run.append(LINES[0])
        returned = run.finish(RESULT)
    assert store.read_result(run.folder) == returned == run.summary


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="choose another folder with --out"):
        write(tmp_path / "file" / "runs", [])


def test_an_error_of_the_caller_passes_unchanged(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="elsewhere"), store.open_run(tmp_path, IDENTITY, STARTED):
        raise FileNotFoundError("elsewhere")


def test_a_run_that_finished_nothing_leaves_nothing(tmp_path: Path) -> None:
    assert not write(tmp_path, []).exists()
    assert list(tmp_path.iterdir()) == []


def test_the_manifest_stays_that_of_the_first_start(tmp_path: Path) -> None:
    first, second = (STARTED.model_copy(update={"started": started}) for started in ("first", "second"))
    with store.open_run(tmp_path, IDENTITY, first) as run:
        run.append(LINES[0])
    with store.open_run(tmp_path, IDENTITY, second) as run:
        assert run.manifest == Manifest(run_id=run.folder.name, identity=IDENTITY, provenance=first)


@pytest.mark.parametrize("name", ["summary.json", "examples.jsonl"])
def test_a_file_of_another_run_is_refused(name: str, tmp_path: Path) -> None:
    folders = []
    for seed in (0, 1):
        with store.open_run(tmp_path, {**IDENTITY, "seed": seed}, STARTED) as run:
            run.append(LINES[0])
            run.finish(RESULT)
        folders.append(run.folder)
    (folders[0] / name).write_bytes((folders[1] / name).read_bytes())
    with pytest.raises(UserError, match="its seal is broken"):
        store.read_result(folders[0]) and store.lines(folders[0])
    store.read_result(folders[1])
    folders[1].rename(tmp_path / "renamed")
    assert store.read_result(tmp_path / "renamed").run_id == RESULT.run_id
    assert store.lines(tmp_path / "renamed") == [LINES[0]]


def finished(out: Path) -> Path:
    """A finished run with the first two lines."""
    with store.open_run(out, IDENTITY, STARTED) as run:
        for each in LINES[:2]:
            run.append(each)
        run.finish(RESULT.model_copy(update={"data": RESULT.data.model_copy(update={"examples": 2})}))
    return run.folder


def test_packed_lines_are_read_as_the_plain_ones(tmp_path: Path) -> None:
    folder = finished(tmp_path)
    plain, before = (folder / store.LINES).read_bytes(), (store.lines(folder), store.parts(folder, 2))
    store.pack(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["examples.jsonl.xz", "manifest.json", "summary.json"]
    assert (folder / store.PACKED).stat().st_size < len(plain)
    assert store.content(folder) == plain
    assert (store.lines(folder), store.parts(folder, 2)) == before
    small = (folder / store.PACKED).read_bytes()
    store.pack(folder)
    assert (folder / store.PACKED).read_bytes() == small


def test_a_packed_run_goes_on(tmp_path: Path) -> None:
    store.pack(finished(tmp_path))
    folder = write(tmp_path, LINES[2:])
    assert not (folder / store.PACKED).exists()
    assert store.lines(folder) == LINES


def test_of_two_files_of_lines_the_plain_one_counts(tmp_path: Path) -> None:
    folder = finished(tmp_path)
    store.pack(folder)
    small = (folder / store.PACKED).read_bytes()
    write(tmp_path, LINES[2:])
    (folder / store.PACKED).write_bytes(small)
    assert store.lines(folder) == LINES
    with store.open_run(tmp_path, IDENTITY, STARTED) as run:
        assert list(run.lines.values()) == LINES
    assert not (folder / store.PACKED).exists()


def test_only_finished_runs_are_packed_and_not_while_another_process_has_them(tmp_path: Path) -> None:
    folder = write(tmp_path, LINES)
    with pytest.raises(UserError, match="is no finished run: finish it"):
        store.pack(folder)
    with store.open_run(tmp_path, IDENTITY, STARTED) as run:
        run.finish(RESULT)
        with pytest.raises(UserError, match="Another process is running"):
            store.pack(folder)
    assert store.lines(folder) == LINES


def test_every_changed_byte_of_packed_lines_is_noticed(tmp_path: Path) -> None:
    folder = finished(tmp_path)
    store.pack(folder)
    path = folder / store.PACKED
    whole = path.read_bytes()
    changed = [whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :] for at in range(len(whole))]
    for damaged in (*changed, whole[:-1], whole + b"\0", whole * 2, b""):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=r"examples\.jsonl\.xz is broken .*: put the intact file back"):
            store.lines(folder)
        with pytest.raises(UserError), store.open_run(tmp_path, IDENTITY, STARTED):
            pass
        assert path.read_bytes() == damaged
