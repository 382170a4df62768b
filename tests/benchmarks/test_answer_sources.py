from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

import pytest

from contextlab.benchmarks.data.sources import Location, field, json_lines, lines, locate_folder, parse_json, texts
from contextlab.benchmarks.prompts import prompt
from contextlab.errors import UserError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CONTEXTLAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CONTEXTLAB_DATA", raising=False)
    return tmp_path / "cache" / "data"


def test_a_folder_is_looked_for_where_it_was_named_and_nowhere_else(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert locate_folder("metaicl", "data", None) == Location(None, "sample")
    (cache / "metaicl" / "data").mkdir(parents=True)
    assert locate_folder("metaicl", "data", None) == Location(cache / "metaicl" / "data", "local")
    with pytest.raises(UserError, match="There is no folder"):
        locate_folder("metaicl", "data", tmp_path)
    monkeypatch.setenv("CONTEXTLAB_DATA", str(tmp_path))
    with pytest.raises(UserError, match="name a data folder that holds metaicl/data"):
        locate_folder("metaicl", "data", None)


def test_json_lines_are_numbered_as_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress('{"a": "é"}\n\n3\n'.encode()))
    records, sha256 = json_lines(path)
    assert records == [(f"Line 1 of {path}", {"a": "é"}), (f"Line 3 of {path}", 3)]
    assert sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_lines_of_a_truncated_archive_end_in_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b"one\ntwo\n"))
    assert list(lines(path)) == [(f"Line 1 of {path}", b"one"), (f"Line 2 of {path}", b"two")]
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(UserError, match="cannot be read"):
        list(lines(path))
    with pytest.raises(UserError, match="There is no file"):
        list(lines(tmp_path / "missing.txt"))
    with pytest.raises(UserError, match="There is no file"):
        json_lines(tmp_path / "missing.jsonl")


@pytest.mark.parametrize("text", ["9" * 5000, "[" * 100_000, "{,}"])
def test_what_no_parser_reads_is_one_sentence(text: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"Line 7 of .* JSON.*: replace the file|Line 7 of .*: replace it"):
        parse_json(text, tmp_path / "a.json", 7)


@pytest.mark.parametrize("value", [None, "", [], 3, "half \ud83d", ["a", ""], ["a", 3], ["\udc00"], [[]]])
def test_texts_are_texts(value: object) -> None:
    with pytest.raises(UserError, match="has no"):
        texts({"a": value}, "a", "Line 1")
    assert texts({"a": ["x", "é\U0001f600"]}, "a", "Line 1") == ("x", "é\U0001f600")
    if not isinstance(value, list):
        with pytest.raises(UserError, match="has no str in its field 'a'"):
            field({"a": value}, "a", str, "Line 1")


@pytest.mark.parametrize("name", ["document-question", "question", "conversation-question", "recall-question"])
def test_prompts_request_an_answer_and_do_not_end_in_a_space(name: str) -> None:
    assert prompt(name).count("{text}") == 1
    assert prompt(name).endswith("\nAnswer:")
    assert prompt(name) == prompt(name).strip()


@pytest.mark.parametrize("name", ["metaicl-item", "metaicl-instructed"])
def test_metaicl_prompts_are_worded_as_their_demonstrations(name: str) -> None:
    assert prompt(name).endswith(prompt("metaicl-item")) == (prompt(name).count("{text}") == 1)
    assert prompt("metaicl-item") == "Input: {text}\nOutput:"
