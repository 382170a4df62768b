"""Documents of folders, files and the hub: all of them, as they stand, or one sentence."""

from __future__ import annotations

import gzip
import hashlib
import json
import lzma
import random
import re
from pathlib import Path

import huggingface_hub
import pytest
from damage import damaged, rounds

from contextlab.errors import UserError
from contextlab.training.sources import open_source


def texts(place: Path | str) -> list[str]:
    return [document.text for document in open_source(place).documents()]


def test_documents_of_every_form_are_read_in_the_order_of_the_files(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\nline\f\ntwo é\f\n", "utf-8")
    (tmp_path / "b.txt.xz").write_bytes(lzma.compress(b"three\f\nfour"))
    (tmp_path / "deeper").mkdir()
    (tmp_path / "deeper" / "c.txt.gz").write_bytes(gzip.compress(b"five\f\n"))
    lines = [{"text": "six", "title": "T", "more": 3}, {"text": "seven"}]
    (tmp_path / "d.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n", "utf-8")
    (tmp_path / "notes.md").write_text("no text to train on")
    assert texts(tmp_path) == ["one\nline", "two é", "three", "four", "six", "seven", "five"]
    documents = list(open_source(tmp_path).documents())
    assert [document.name for document in documents][:2] == ["a.txt#0", "a.txt#1"]
    assert documents[4].about == {"title": "T"}
    assert documents[0].sha256 == hashlib.sha256(b"one\nline").hexdigest()


def test_endings_are_compared_without_case(tmp_path: Path) -> None:
    (tmp_path / "a.JSONL").write_text(json.dumps({"text": "one"}))
    (tmp_path / "b.TXT.GZ").write_bytes(gzip.compress(b"two"))
    assert texts(tmp_path) == ["one", "two"]


def test_one_file_is_a_corpus(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\f\ntwo")
    (tmp_path / "b.txt").write_text("three")
    assert texts(tmp_path / "a.txt") == ["one", "two"]


def test_a_form_feed_within_a_line_ends_no_document(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"page\fpage\r\n\f\nnext")
    assert texts(tmp_path) == ["page\fpage\r\n", "next"]
    (tmp_path / "a.txt").write_bytes(b"one\r\n\f\r\ntwo\f\r\n")
    assert texts(tmp_path) == ["one\r\n", "two"]


def test_empty_documents_and_a_mark_of_byte_order_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\f\n \n\f\n\f\ntwo\f\n")
    assert texts(tmp_path) == ["one", "two"]


def test_an_index_tells_of_the_documents_by_their_digests(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\f\ntwo\f\n")
    about = {"id": "x:1", "title": "One", "licence": "CC0", "sha256": hashlib.sha256(b"one").hexdigest(), "words": 1}
    (tmp_path / "index.jsonl").write_text(f"{json.dumps(about)}\nno json\n[1]\n")
    first, second = open_source(tmp_path).documents()
    assert first.about == {"id": "x:1", "title": "One", "licence": "CC0"}
    assert second.about == {}
    assert set(open_source(tmp_path).digests) == {"a.txt", "index.jsonl"}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"caf\xe9 au lait", r"a\.txt is not UTF-8 \(byte 3\): convert it"),
        ("a.txt.xz", b"no xz", r"a\.txt\.xz cannot be read"),
        ("a.txt.gz", gzip.compress(b"whole " * 99, mtime=0)[:30], r"a\.txt\.gz cannot be read"),
        ("a.jsonl", b'{"text": "one"}\n{"words": "two"}\n', r"Line 2 of .*a\.jsonl holds no text"),
        ("a.jsonl", b'["text"]\n', r"Line 1 of .*a\.jsonl holds no text"),
        ("a.jsonl", b"[" * 100_000, r"Line 1 of .*a\.jsonl is not valid JSON"),
        ("a.jsonl", b'{"text": "one"}\n\n{"text": "two"\n', r"Line 3 of .*a\.jsonl is not valid JSON \(Expecting ','"),
        ("a.instructions.jsonl", b'{"task": "a"\n', r"Line 1 of .*a\.instructions\.jsonl is not valid JSON"),
        ("a.jsonl.gz", gzip.compress(b'{"text": 3}', mtime=0), r"Line 1 of .*a\.jsonl\.gz holds no text"),
    ],
    # Every process of a parallel run must collect the same names, and archives hold the time.
    ids=["latin-1", "no xz", "cut gz", "no text", "no object", "deep", "cut", "cut example", "a number"],
)
def test_what_cannot_be_read_is_one_sentence(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message) as error:
        texts(tmp_path)
    assert "\n" not in str(error.value)


def test_places_without_texts_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"There is no corpus .*nowhere"):
        open_source(tmp_path / "nowhere")
    (tmp_path / "index.jsonl").write_text("{}")
    with pytest.raises(UserError, match=r"holds no such files: give files that end in \.txt"):
        open_source(tmp_path)


def test_a_data_set_of_the_hub_is_read_like_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def download(repository: str, **options: object) -> str:
        calls.append((repository, options["revision"], options["repo_type"]))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    (tmp_path / "a.txt").write_text("one\f\ntwo")
    source = open_source("hub:someone/books@abc")
    assert [document.text for document in source.documents()] == ["one", "two"]
    assert (calls, source.name) == ([("someone/books", "abc", "dataset")], "hub:someone/books@abc")


def test_a_data_set_that_cannot_be_had_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(*_: object, **__: object) -> str:
        raise RuntimeError("no network\nat all")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(UserError, match=r"someone/books cannot be fetched from the hub \(no network\)"):
        open_source("hub:someone/books")


def test_damaged_files_are_read_or_refused(tmp_path: Path) -> None:
    whole = b'{"text": "one two", "title": "T"}\n{"text": "three"}\n'
    files = {"a.jsonl": whole, "b.txt": "één\f\ntwee\f\n".encode(), "c.txt.xz": lzma.compress(b"x" * 999)}
    sentences = list[str]()
    for draw in rounds(60, salt="sources"):
        for name, content in files.items():
            (tmp_path / name).write_bytes(damaged(content, draw) if draw.random() < 0.5 else content)
        try:
            assert all(isinstance(text, str) for text in texts(tmp_path))
        except UserError as error:
            sentences.append(str(error))
    assert sentences
    assert not [sentence for sentence in sentences if "\n" in sentence]


def test_a_text_is_what_was_written_whatever_stands_in_it(tmp_path: Path) -> None:
    draw = random.Random(0)
    for _ in range(30):
        drawn = [
            re.sub("\f\r?\n", "-", "".join(draw.choice("ab \n\r\té\u2028\f🙂") for _ in range(20))) + "z"
            for _ in range(3)
        ]
        (tmp_path / "a.txt").write_bytes("".join(f"{text}\f\n" for text in drawn).encode())
        assert texts(tmp_path) == drawn
