"""Whatever is changed in a sealed text is seen; what is read back fits its model and its size."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Literal

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from contextlab import seals
from contextlab.seals import Damaged

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)
VALUES = st.dictionaries(st.text().filter(lambda name: name not in ("seal", "schema")), PLAIN, min_size=1)


class Kept(pydantic.BaseModel):
    schema_: Literal[1, 2] = Field(alias="schema")
    n: int


@given(VALUES, st.booleans(), st.text(max_size=3))
def test_what_is_opened_is_what_was_sealed(value: dict[str, Any], line: bool, salt: str) -> None:
    text = seals.sealed(value, salt=salt, line=line)
    assert seals.opened(text, salt=salt) == seals.opened(text + "\n", salt=salt) == value
    assert json.loads(text).keys() == {*value, "seal"}
    assert list(json.loads(text))[-1] == "seal"
    assert ("\n" in text) != line
    assert seals.sealed(json.loads(text), salt=salt, line=line) == text


@given(VALUES, st.booleans(), st.data())
def test_every_changed_byte_is_seen(value: dict[str, Any], line: bool, data: st.DataObject) -> None:
    text = seals.sealed({"schema": 2, **value}, line=line).encode()
    at = data.draw(st.integers(0, len(text) - 1))
    changed = text[:at] + bytes([text[at] ^ data.draw(st.integers(1, 255))]) + text[at + 1 :]
    with pytest.raises(Damaged):
        seals.opened(changed.decode("utf-8", "replace"))


@given(VALUES, st.booleans(), st.data())
def test_every_cut_is_seen(value: dict[str, Any], line: bool, data: st.DataObject) -> None:
    text = seals.sealed({"schema": 2, **value}, line=line)
    with pytest.raises(Damaged):
        seals.opened(text[: data.draw(st.integers(0, len(text) - 1))])


def test_a_seal_belongs_to_its_salt() -> None:
    with pytest.raises(Damaged, match="its seal is broken"):
        seals.opened(seals.sealed({"a": 1}, salt="one"), salt="two")


def test_a_seal_may_be_missing_only_in_the_first_schema() -> None:
    assert seals.opened('{"a": 1}') == {"a": 1}
    assert seals.opened('{"schema": 1}') == {"schema": 1}
    for text in ('{"schema": 2}', '{"schema": 2, "sial": "00"}', '{"schema": 3}'):
        with pytest.raises(Damaged, match="its seal is missing"):
            seals.opened(text)
    with pytest.raises(Damaged, match="its seal is missing"):
        seals.opened('{"a": 1}', required=True)


@pytest.mark.parametrize("text", ["", "{", "[1]", "1", "[" * 100_000, '{"seal": 1}', '{"a": 1, "seal": null}'])
def test_other_texts_are_damaged(text: str) -> None:
    with pytest.raises(Damaged):
        seals.opened(text)


def test_a_file_is_read_as_its_model(tmp_path: Path) -> None:
    path = tmp_path / "file"
    seals.write(path, {"schema": 2, "n": 3})
    assert seals.read(path, Kept).n == 3
    assert path.read_text().endswith('"\n}\n')
    seals.write(path, {"schema": 2, "n": "no number"})
    with pytest.raises(Damaged, match=r"^n: input should be a valid integer"):
        seals.read(path, Kept)


def test_a_file_that_cannot_be_read_is_damaged(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        seals.text(tmp_path / "none")
    with pytest.raises(Damaged, match="is a directory"):
        seals.text(tmp_path)
    (tmp_path / "file").write_bytes(b"\xff")
    with pytest.raises(Damaged, match="no UTF-8"):
        seals.text(tmp_path / "file")


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        os.truncate(file.fileno(), seals.LARGEST + 1)
    with pytest.raises(Damaged, match="more than 256 MiB"):
        seals.text(tmp_path / "file")
