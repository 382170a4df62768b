"""Files of a run: whole or not there, and a curve that is cut back to what a checkpoint knows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from contextlab.errors import UserError
from contextlab.training import records
from contextlab.training.records import Curve


def test_an_object_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    assert records.read(path) is None
    for value in ({"a": 1}, {"b": [1, {"c": "é"}]}):
        records.write(path, value)
        assert records.read(path) == value
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize("content", [b"{", b"[1]", b"\xff", b"[" * 100_000])
def test_a_broken_file_is_one_sentence(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(UserError, match=r"a\.json .*: delete it, or choose another --out") as error:
        records.read(tmp_path / "a.json")
    assert "\n" not in str(error.value)


def test_a_curve_goes_on_behind_what_is_known_of_it(tmp_path: Path) -> None:
    path = tmp_path / "curve.jsonl"
    curve = Curve(path)
    curve.append({"n": 1})
    known = curve.length
    curve.append({"n": 2})
    curve.close()
    assert path.stat().st_size == curve.length
    with path.open("ab") as file:
        file.write(b'{"n": 3')
    again = Curve(path, known)
    again.append({"n": 4})
    again.close()
    assert again.lines() == [{"n": 1}, {"n": 4}]


def test_a_curve_that_is_gone_is_begun_anew(tmp_path: Path) -> None:
    curve = Curve(tmp_path / "curve.jsonl", 1000)
    curve.append({"n": 1})
    curve.close()
    assert curve.lines() == [{"n": 1}]


def test_a_curve_without_a_file_keeps_nothing() -> None:
    curve = Curve(None, 10)
    curve.append({"n": 1})
    curve.close()
    assert (curve.length, curve.lines()) == (0, [])


def test_a_folder_is_held_by_one_process(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from contextlab.errors import UserError
from contextlab.training import records
try:
    with records.held(Path(sys.argv[1])):
        print("held")
except UserError as error:
    print(error)
"""
    command = [sys.executable, "-c", code, str(tmp_path / "out")]
    with records.held(tmp_path / "out"):
        answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert "Another process trains into" in answer
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "held\n"


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"), records.held(tmp_path / "file" / "out"):
        pass
