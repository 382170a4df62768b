from __future__ import annotations

import gzip
import hashlib
import lzma
from pathlib import Path

import pytest

from contextlab.benchmarks.data.catalogue import SETS
from contextlab.benchmarks.data.data_set import DataSet, Remote
from contextlab.benchmarks.data.fetch import write_sums
from contextlab.benchmarks.data.intact import Report, examine

JSON = b'{"a": [1]}\n'
LINES = JSON * 3
FILES = {"data/a.json": JSON, "b.jsonl.gz": gzip.compress(LINES, mtime=0), "c.txt.xz": lzma.compress(b"text")}
PATTERNS = ("data/*.json", "b.jsonl", "c.txt.xz")


def digest(content: bytes, kind: str = "sha256") -> str:
    return f"{kind}:{hashlib.new(kind, content).hexdigest()}"


def remote(path: str, content: bytes, kind: str = "sha256") -> Remote:
    return Remote(path, f"https://example.org/{path}", digest(content, kind))


def put(root: Path, files: dict[str, bytes] = FILES) -> Path:
    for name, content in files.items():
        path = root / "set" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root


def look(root: Path, *remotes: Remote) -> Report:
    return examine(DataSet("set", "", "", "", "", PATTERNS, remotes=remotes), root)


def test_nothing_is_absent_and_some_is_incomplete(tmp_path: Path) -> None:
    assert look(tmp_path).state == "absent"
    put(tmp_path, {"b.jsonl": LINES})
    report = look(tmp_path)
    assert (report.state, report.missing, report.files) == ("incomplete", ("data/*.json", "c.txt.xz"), 1)


def test_whole_files_without_digests_are_unverified(tmp_path: Path) -> None:
    report = look(put(tmp_path))
    assert (report.state, report.files, report.verified) == ("unverified", 3, 0)
    assert report.bytes == sum(map(len, FILES.values()))


def test_packed_files_count_as_published_when_their_content_does(tmp_path: Path) -> None:
    remotes = (
        remote("data/a.json", JSON, "md5"),
        remote("b.jsonl", LINES),
        remote("c.txt.xz", FILES["c.txt.xz"]),
    )
    report = look(put(tmp_path), *remotes)
    assert (report.state, report.verified) == ("complete", 3)
    assert look(tmp_path, *remotes[:2]).state == "unverified"
    assert look(tmp_path, remote("b.jsonl.gz", FILES["b.jsonl.gz"])).verified == 1


def test_another_content_than_the_published_one_is_re_laid(tmp_path: Path) -> None:
    assert look(put(tmp_path), remote("data/a.json", b"other")).state == "re-laid"


@pytest.mark.parametrize("where", ["set/SHA256SUMS", "SHA256SUMS"])
def test_sums_of_either_folder_are_compared(tmp_path: Path, where: str) -> None:
    put(tmp_path)
    prefix = "set/" if where == "SHA256SUMS" else ""
    write_sums(tmp_path / where, {prefix + name: digest(content)[7:] for name, content in FILES.items()})
    assert (look(tmp_path).state, look(tmp_path).verified) == ("intact", 3)
    put(tmp_path, {"data/a.json": b"[]"})
    report = look(tmp_path)
    assert (report.state, report.verified) == ("broken", 2)
    assert "a.json is not the file that SHA256SUMS lists" in report.problems[0]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("data/a.json", b"", "is empty"),
        ("data/a.json", b'{"a":\n', "Line 2"),
        ("b.jsonl.gz", gzip.compress(JSON + b"oops\n", mtime=0), "Line 2"),
        ("b.jsonl.gz", gzip.compress(LINES, mtime=0)[:-5], "cannot be read"),
        ("b.jsonl.gz", LINES, "cannot be read"),
        ("b.jsonl.gz", gzip.compress(b'"\xff"', mtime=0), "not UTF-8"),
        ("b.jsonl.gz", gzip.compress(b"", mtime=0), "is empty"),
        ("c.txt.xz", FILES["c.txt.xz"][:-4], "cannot be read"),
    ],
)
def test_a_broken_file_is_named_and_the_others_are_still_read(
    tmp_path: Path, name: str, content: bytes, reason: str
) -> None:
    put(tmp_path, {**FILES, name: content})
    report = look(tmp_path)
    assert (report.state, report.files, len(report.problems)) == ("broken", 3, 1)
    assert reason in report.problems[0]
    assert Path(name).name in report.problems[0]


def test_the_local_data_is_as_it_says(shared: Path) -> None:
    expected = {"wikitext": "re-laid", "squad": "re-laid", "agnews": "re-laid", "arxiv": "absent", "pg22": "intact"}
    for name, state in expected.items():
        report = examine(SETS[name], shared / "data")
        assert (report.state, report.verified) == (state, report.files)
