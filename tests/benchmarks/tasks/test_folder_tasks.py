from __future__ import annotations

import gzip
import hashlib
from pathlib import Path
from typing import Any

import pytest

from contextlab.benchmarks.configs import PerplexityConfig
from contextlab.benchmarks.tasks.arxiv import ArXiv
from contextlab.benchmarks.tasks.folder import FolderTask
from contextlab.benchmarks.tasks.pg19 import BOOKS, PG19
from contextlab.errors import UserError

TASKS: list[FolderTask] = [PG19(), ArXiv()]
LATEX = "\\documentclass{article} % a comment\r\n\n\\begin{document}$x^2$ \n"


pytestmark = pytest.mark.usefixtures("no_data")


def put(root: Path, files: dict[str, str | bytes]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        raw = content.encode() if isinstance(content, str) else content
        path.write_bytes(gzip.compress(raw, mtime=0) if name.endswith(".gz") else raw)
    return root


def test_books_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    put(tmp_path, {f"pg19/test/{number}.txt": f"book {number}" for number in (10005, 9, 100)})
    put(tmp_path, {"pg19/test/README.md": "no book", "pg19/validation/7.txt.gz": "book 7"})
    data = PG19().load("test", tmp_path)
    assert [(book.id, book.text) for book in data.examples] == [
        (f"test/{number}", f"book {number}") for number in (9, 100, 10005)
    ]
    assert [book.id for book in PG19().load("validation", tmp_path).examples] == ["validation/7"]


def test_only_a_whole_split_may_be_pg19(tmp_path: Path) -> None:
    for split, count in BOOKS.items():
        put(tmp_path, {f"pg19/{split}/{n}.txt": "text" for n in range(count - 1)})
        assert PG19().load(split, tmp_path).note.endswith("not a result on PG-19")
        put(tmp_path, {f"pg19/{split}/last.txt": "text"})
        note = f"your own data in the layout of PG-19 {split}, not verified against the publisher: {count} books"
        assert PG19().load(split, tmp_path).note == note


def test_papers_are_read_as_they_are_from_any_depth(tmp_path: Path) -> None:
    put(
        tmp_path,
        {"arxiv/b.txt": "plain", "arxiv/2101/a.tex.gz": LATEX, "arxiv/2101/fig.png": b"\x89", "arxiv/x.bib": "@"},
    )
    data = ArXiv().load("all", tmp_path)
    assert [(paper.id, paper.text) for paper in data.examples] == [("all/2101/a", LATEX), ("all/b", "plain")]
    assert "2 files" in data.note


def test_the_stand_in_is_called_one_and_comes_second(tmp_path: Path, no_data: Path) -> None:
    put(no_data, {"latex_papers/a.tex": LATEX})
    data = ArXiv().load("all", None)
    assert (data.source, data.note) == ("local", "stand-in: LaTeX of other origin, not papers of arXiv")
    put(no_data, {"arxiv/b.tex": LATEX})
    assert [paper.id for paper in ArXiv().load("all", None).examples] == ["all/b"]


def test_a_plain_file_goes_before_its_packed_twin(tmp_path: Path) -> None:
    put(tmp_path, {"arxiv/a.tex": "plain", "arxiv/a.tex.gz": "packed"})
    assert [paper.text for paper in ArXiv().load("all", tmp_path).examples] == ["plain"]


def test_the_digest_covers_names_and_contents(tmp_path: Path) -> None:
    digests = set()
    for n, files in enumerate(({"a.tex": "x"}, {"b.tex": "x"}, {"a.tex": "y"}, {"a.tex": "x", "b.tex": "x"})):
        put(tmp_path / str(n), {f"arxiv/{name}": text for name, text in files.items()})
        digests.add(ArXiv().load("all", tmp_path / str(n)).sha256)
    assert len(digests) == 4
    of_file = hashlib.sha256(f"{hashlib.sha256(b'x').hexdigest()}  a.tex\n".encode()).hexdigest()
    assert ArXiv().load("all", tmp_path / "0").sha256 == of_file


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"a\.txt is empty"),
        (b" \n\n", r"a\.txt is empty"),
        (b"one\ntwo\ncaf\xe9\n", r"Line 3 of .*a\.txt is not UTF-8"),
    ],
)
@pytest.mark.parametrize("task", TASKS)
def test_a_text_that_is_none_is_named(task: FolderTask, content: bytes, message: str, tmp_path: Path) -> None:
    split = task.default_split
    put(tmp_path, {f"{task.folders[split][0]}/a.txt": content, f"{task.folders[split][0]}/b.txt": "good"})
    with pytest.raises(UserError, match=message):
        task.load(split, tmp_path)


@pytest.mark.parametrize("task", TASKS)
def test_a_folder_that_lacks_the_texts_is_an_error(task: FolderTask, tmp_path: Path) -> None:
    folder = tmp_path / task.folders[task.default_split][0]
    with pytest.raises(UserError, match=f"There is no folder {folder}"):
        task.load(task.default_split, tmp_path)
    folder.mkdir(parents=True)
    with pytest.raises(UserError, match="holds no file ending in"):
        task.load(task.default_split, tmp_path)


@pytest.mark.parametrize("task", TASKS)
def test_without_data_there_is_a_sample(task: FolderTask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(task), "sample", (2, 300))
    loaded = [task.load(split, None) for split in task.splits]
    assert len({data.sha256 for data in loaded}) == len(loaded)
    for data in loaded:
        assert (data.source, data.note) == ("sample", f"generated sample, not {task.name}")
        assert [len(text.text.split()) >= 300 for text in data.examples] == [True, True]


@pytest.mark.parametrize("task", TASKS)
def test_texts_are_put_as_perplexity(task: FolderTask) -> None:
    protocol: Any = type(task)(PerplexityConfig(tokens=512)).protocol(task.default_split)
    assert protocol.options.tokens == 512
    with pytest.raises(UserError, match=f"no split of {task.name}"):
        task.protocol("train")


def test_the_local_texts_are_whole(shared: Path) -> None:
    books, papers = PG19().load("test", shared / "data"), ArXiv().load("all", shared / "data")
    assert [book.id for book in books.examples] == ["test/21249", "test/57628"]
    assert books.note.endswith("2 books in place of 100, not a result on PG-19")
    assert (len(papers.examples), papers.note[:8]) == (12, "stand-in")
    assert all("\\" in paper.text for paper in papers.examples)
