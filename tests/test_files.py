from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextlab import files

VALUES = st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.integers()))


@given(st.binary())
def test_the_digest_is_that_of_the_content(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("files") / "file"
    path.write_bytes(content)
    assert files.sha256(path) == hashlib.sha256(content).hexdigest()


@given(VALUES, VALUES)
def test_json_takes_the_place_of_what_was_there(
    tmp_path_factory: pytest.TempPathFactory, first: dict[str, Any], second: dict[str, Any]
) -> None:
    path = tmp_path_factory.mktemp("files") / "value.json"
    for value in (first, second):
        files.write_json(path, value)
        assert json.loads(path.read_text("utf-8")) == value
    assert [one.name for one in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("broken", ["fsync", "replace"])
def test_what_cannot_be_written_leaves_the_earlier_file_alone(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "value.json"
    files.write_json(path, {"a": 1})

    def full(*_: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, broken, full)
    with pytest.raises(OSError, match="no space left"):
        files.write_json(path, {"a": 2})
    assert [one.name for one in tmp_path.iterdir()] == [path.name]
    assert json.loads(path.read_text("utf-8")) == {"a": 1}
