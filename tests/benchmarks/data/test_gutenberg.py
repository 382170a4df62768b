from __future__ import annotations

import csv
import gzip
import hashlib
import io
import itertools
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from contextlab import locks
from contextlab.benchmarks.data import gutenberg, pg22_build
from contextlab.benchmarks.data.gutenberg import Mirror, body, paths, select
from contextlab.benchmarks.data.pg22_build import bucket, build, differences, load_tokenizer
from contextlab.benchmarks.tasks.pg22 import PG22
from contextlab.errors import UserError

HEADER = "The Project Gutenberg eBook of X\r\n\r\nTitle: X\r\n\r\n"
START = "*** START OF THE PROJECT GUTENBERG EBOOK X ***\r\n\r\n\r\n"
END = "\r\n\r\n*** END OF THE PROJECT GUTENBERG EBOOK X ***\r\nlicence\r\n"
# Words by number of the book; ten of them satisfy the rule of the set, and two of those are too short.
LENGTHS = {
    61001: 7,
    61002: 3,
    61003: 20,
    61004: 60,
    61005: 150,
    62006: 600,
    63007: 1200,
    64008: 12,
    65009: 30,
    69010: 2,
}
OTHERS = {
    100: ("Text", "2019-12-31", "en"),
    66001: ("Sound", "2021-05-05", "en"),
    66002: ("Text", "2021-05-05", "de"),
    66003: ("Text", "2021-05-05", "en; fr"),
    71000: ("Text", "2023-01-01", "en"),
}


def text_of(number: int) -> str:
    words = [f"w{number}"] * (LENGTHS[number] - 1)
    return "   _Title_\n" + "".join(" ".join(words[i : i + 8]) + "\n" for i in range(0, len(words), 8))


def catalogue(numbers: Any = tuple(LENGTHS)) -> bytes:
    file = io.StringIO(newline="")
    writer = csv.writer(file)
    writer.writerow([*gutenberg.COLUMNS, "Bookshelves"])
    for number in numbers:
        title = f'Book "{number}"\nor a title of two lines'
        writer.writerow([number, "Text", "2021-06-30", title, "en", "Doe, Jane, 1850-1900", "Fiction", "PS", ""])
    for number, (kind, issued, language) in OTHERS.items():
        writer.writerow([number, kind, issued, "Other", language, "", "", "", ""])
    return file.getvalue().encode()


@pytest.fixture
def mirror(tmp_path: Path) -> Path:
    """Books at all paths that mirrors use, with and without BOM."""
    root = tmp_path / "mirror"
    for number in LENGTHS:
        path = root / paths(number)[number % 3]
        path.parent.mkdir(parents=True, exist_ok=True)
        content = HEADER + START + text_of(number).replace("\n", "\r\n") + END
        path.write_bytes(content.encode("utf-8-sig" if number % 2 else "utf-8"))
    feed = root / gutenberg.ON_MIRROR[0]
    feed.parent.mkdir(parents=True)
    feed.write_bytes(catalogue())
    return root


@pytest.fixture(autouse=True)
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pg22_build, "RANGES", {"S1": 5, "S2": 10, "S3": 100, "S4": 500, "S5": 1000})


@pytest.fixture
def metadata(tmp_path: Path) -> Path:
    path = tmp_path / "metadata.csv"
    path.write_text('10005,"A Voyage, to the Moon",1828,http://x\n21249,Clayhanger,1910,http://y\n')
    return path


def tokenizer() -> Tokenizer:
    words = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return words


Builder = Callable[..., dict[str, Any]]


@pytest.fixture
def drawn(mirror: Path, metadata: Path) -> Builder:
    def draw(root: Path, **options: Any) -> dict[str, Any]:
        source = options.pop("source", None) or Mirror(str(mirror))
        return build(root / "pg22", source, options.pop("metadata", metadata), tokenizer(), **options)

    return draw


def test_a_drawn_set_is_read_by_the_task(drawn: Builder, tmp_path: Path) -> None:
    manifest = drawn(tmp_path / "data")
    assert manifest["buckets"] == {"S1": 1, "S2": 4, "S3": 1, "S4": 1, "S5": 1}
    assert manifest["skipped"] == {"shorter than 5,000 tokens": 2}
    texts = {}
    for split in PG22.splits:
        data = PG22().load(split, tmp_path / "data")
        assert (data.source, data.note[:5]) == ("local", "real:")
        texts |= {int(book.id.removeprefix("pg")): book.text for book in data.examples}
    assert texts == {number: text_of(number) for number, words in LENGTHS.items() if words >= 5}
    assert differences(tmp_path / "data" / "pg22") == []


def test_the_lines_of_a_drawn_set_have_the_known_fields(drawn: Builder, tmp_path: Path, shared: Path) -> None:
    drawn(tmp_path / "data")
    lines = (tmp_path / "data/pg22/books.jsonl").read_text().splitlines()
    known = json.loads((shared / "data/pg22/books.jsonl").open().readline())
    for book in map(json.loads, lines):
        assert set(known) - set(book) == {"chapter_pattern", "n_chapters", "chapters", "mirror_commit"}
        assert {key for key in book if key in known and type(book[key]) is not type(known[key])} == set()
        assert book["title"] == f'Book "{book["gutenberg_id"]}"'


def test_two_people_draw_the_same_and_a_limit_takes_the_first(drawn: Builder, tmp_path: Path) -> None:
    first, second = drawn(tmp_path / "one"), drawn(tmp_path / "two")
    assert first == second
    lines = (tmp_path / "one/pg22/books.jsonl").read_text().splitlines()
    assert drawn(tmp_path / "three", limit=3)["books"] == 3
    assert (tmp_path / "three/pg22/books.jsonl").read_text().splitlines() == lines[:3]
    assert drawn(tmp_path / "three") == first


def test_books_of_pg19_are_left_out(drawn: Builder, tmp_path: Path, metadata: Path) -> None:
    metadata.write_text("61003,x,1900,u\n61004,x,1900,u\n")
    drawn(tmp_path)
    ids = {json.loads(line)["gutenberg_id"] for line in (tmp_path / "pg22/books.jsonl").read_text().splitlines()}
    assert ids == {number for number, words in LENGTHS.items() if words >= 5} - {61003, 61004}


class Stopping(Mirror):
    """A mirror whose reader is interrupted after some books."""

    def __init__(self, where: Path, books: int) -> None:
        super().__init__(str(where))
        self.left = books

    def book(self, number: int) -> tuple[str, bytes] | None:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        return super().book(number)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(stopped=st.integers(0, 9), cut=st.integers(0, 400), lost=st.booleans(), seed=st.integers())
def test_a_build_that_was_stopped_anywhere_ends_as_one_that_was_not(
    stopped: int, cut: int, lost: bool, seed: int, drawn: Builder, mirror: Path, tmp_path: Path
) -> None:
    whole = drawn(tmp_path / "whole")
    root = tmp_path / f"out-{stopped}-{cut}-{lost}-{seed}"
    with pytest.raises(KeyboardInterrupt):
        drawn(root, source=Stopping(mirror, stopped))
    journal = root / "pg22" / "build.jsonl"
    first = journal.read_bytes().index(b"\n") + 1
    journal.write_bytes(journal.read_bytes()[: max(first, len(journal.read_bytes()) - cut)])
    texts = sorted((root / "pg22/texts").iterdir())
    if lost and texts:
        random.Random(seed).choice(texts).unlink()
    assert drawn(root) == whole
    assert differences(root / "pg22") == []
    for name in ("books.jsonl", "manifest.json"):
        assert (root / "pg22" / name).read_bytes() == (tmp_path / "whole/pg22" / name).read_bytes()


def test_finished_books_are_not_read_again(drawn: Builder, mirror: Path, tmp_path: Path) -> None:
    whole = drawn(tmp_path)
    source = Stopping(mirror, 0)
    assert drawn(tmp_path, source=source) == whole
    assert source.left == 0


def test_one_process_builds_in_a_folder(drawn: Builder, tmp_path: Path) -> None:
    drawn(tmp_path)
    with locks.alone(tmp_path / "pg22", "held"), pytest.raises(UserError, match="Another process builds"):
        drawn(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"pg22 cannot be written \(.*\): give another --out"):
        drawn(tmp_path / "file")


def test_a_changed_journal_is_seen(drawn: Builder, tmp_path: Path) -> None:
    drawn(tmp_path)
    journal = tmp_path / "pg22" / "build.jsonl"
    whole = journal.read_bytes()
    for broken in (whole[:-30], whole.replace(b"tokens", b"takens", 1), whole.replace(b"Book", b"Look", 1), b""):
        assert broken != whole
        journal.write_bytes(broken)
        assert [str(journal) in sentence for sentence in differences(tmp_path / "pg22")] == [True]


def test_other_sources_do_not_mix(drawn: Builder, tmp_path: Path, metadata: Path, mirror: Path) -> None:
    drawn(tmp_path / "data")
    before = (tmp_path / "data/pg22/books.jsonl").read_bytes()
    other = tmp_path / "other.csv"
    other.write_text("5,x\n")
    feed = tmp_path / "feed.csv"
    feed.write_bytes(catalogue([61003]))
    for options in ({"metadata": other}, {"catalogue": feed.as_uri()}):
        with pytest.raises(UserError, match="another catalogue, PG-19 list or tokenizer"):
            drawn(tmp_path / "data", **options)
    (mirror / gutenberg.ON_MIRROR[0]).write_bytes(catalogue([61003]))
    assert drawn(tmp_path / "data")["books"] == 8
    assert (tmp_path / "data/pg22/books.jsonl").read_bytes() == before
    (tmp_path / "data/pg22/build.jsonl").write_text("not json\n")
    with pytest.raises(UserError, match="no journal"):
        drawn(tmp_path / "data")


def test_a_changed_set_does_not_agree_with_its_manifest(drawn: Builder, tmp_path: Path) -> None:
    drawn(tmp_path)
    folder = tmp_path / "pg22"
    listed = (folder / "books.jsonl").read_text()
    text = next((folder / "texts").iterdir())
    original = text.read_bytes()
    text.write_bytes(gzip.compress(b"another"))
    assert [text.name in problem for problem in differences(folder)] == [True]
    text.write_bytes(original[:-9])
    assert "cannot be read" in differences(folder)[0]
    text.write_bytes(original)
    (folder / "books.jsonl").write_text("".join(listed.splitlines(keepends=True)[1:]))
    assert "does not list" in differences(folder)[0]
    for broken, reason in (("{}\n", "lacks a field"), ("{\n", "Line 1"), ("[]\n", "lacks a field")):
        (folder / "books.jsonl").write_text(broken)
        assert reason in differences(folder)[0]
    assert "There is no file" in differences(tmp_path / "nothing")[0]


def test_the_upstream_files_give_the_stored_texts(shared: Path) -> None:
    folder = shared / "data" / "pg22"
    compared = 0
    for raw in (folder / "raw").glob("*.txt.gz"):
        stored = folder / "texts" / f"{raw.name.partition('-')[0]}.txt.gz"
        text = body(gzip.decompress(raw.read_bytes()))
        if text is not None and stored.exists():
            compared += 1
            assert text == gzip.decompress(stored.read_bytes()).decode()
    assert compared == 1
    gatsby = body(gzip.decompress((folder / "raw/64317-0.full_header.txt.gz").read_bytes()))
    assert gatsby is not None
    assert gatsby.startswith("\t\t\t   The Great Gatsby")
    assert "Project Gutenberg" not in gatsby


def test_the_stored_rows_select_the_stored_books(shared: Path) -> None:
    folder = shared / "data" / "pg22"
    rows = select((folder / "pg_catalog.csv").read_bytes(), pg22_build.FIRST, pg22_build.LAST, ())
    stored = {json.loads(line)["gutenberg_id"] for line in (folder / "books.jsonl").read_text().splitlines()}
    assert {row.number for row in rows} == stored
    excluded, _ = pg22_build._numbers(shared / "data/pg19/metadata.csv")
    assert not excluded & stored


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize(
    "marks",
    [
        ("*** START OF THE PROJECT GUTENBERG EBOOK 5 ***", "*** END OF THE PROJECT GUTENBERG EBOOK 5 ***"),
        ("***START OF THIS PROJECT GUTENBERG EBOOK A***", "***END OF THIS PROJECT GUTENBERG EBOOK A***"),
        (
            "*** START OF THE PROJECT GUTENBERG EBOOK A\nLONG TITLE ***",
            "*** END OF THE PROJECT GUTENBERG EBOOK A\nB ***",
        ),
    ],
)
def test_the_book_is_the_text_between_the_lines(marks: tuple[str, str], newline: str) -> None:
    text = f"head\n{marks[0]}\n\n\n  *** a\n\n*** b ***\nend\n\n\n{marks[1]}\nlicence"
    assert body(text.replace("\n", newline).encode("utf-8-sig")) == "  *** a\n\n*** b ***\nend\n"
    for broken in (text.replace(marks[0], ""), text.replace(marks[1], ""), f"{marks[1]}\n{marks[0]}\n"):
        assert body(broken.encode()) is None
    assert body(text.encode() + b"\xff") is None


def test_mirrors_keep_books_below_the_digits_of_their_number() -> None:
    assert paths(12345) == ["1/2/3/4/12345/12345-0.txt", "cache/epub/12345/pg12345.txt", "1/2/3/4/12345/12345.txt"]
    assert paths(7)[0] == "0/7/7-0.txt"


@pytest.mark.parametrize("where", ["https://www.gutenberg.org", "http://gutenberg.org/x", "nowhere/at/all"])
def test_the_site_itself_is_not_read(where: str) -> None:
    with pytest.raises(UserError, match=r"--mirror|name a folder"):
        Mirror(where)


def test_a_mirror_on_the_network_is_read_slowly_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, times, answers = [100.0], list[float](), [OSError("busy"), b"x", None, *[OSError("gone")] * 3]

    def answer(url: str) -> bytes | None:
        times.append(clock[0])
        result = answers.pop(0)
        if isinstance(result, OSError):
            raise result
        assert result is None or isinstance(result, bytes)
        return result

    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))
    monkeypatch.setattr(gutenberg, "get", answer)
    far = Mirror("https://mirror.example/gutenberg/")
    assert far.read("a") == b"x"
    assert far.read("b") is None
    with pytest.raises(UserError, match=r"https://mirror\.example/gutenberg/c cannot be reached \(gone\)"):
        far.read("c")
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert min(gaps) >= 1.0
    assert times[0] == 100.0


def test_what_cannot_be_used_is_skipped_with_the_reason(drawn: Builder, mirror: Path, tmp_path: Path) -> None:
    for number, content in ((61003, None), (61004, b"\xff\xfe"), (61005, b"no such lines")):
        path = mirror / paths(number)[number % 3]
        path.unlink()
        if content is not None:
            path.write_bytes(content)
    skipped = drawn(tmp_path)["skipped"]
    assert skipped["no plain text at the mirror"] == 1
    assert skipped["not UTF-8 between START and END lines"] == 2


def test_broken_sources_are_named(drawn: Builder, mirror: Path, metadata: Path, tmp_path: Path) -> None:
    feed = mirror / gutenberg.ON_MIRROR[0]
    for content, message in (
        (b"a,b\n1,2\n", "Line 2 of the catalogue is broken"),
        (catalogue() + b'"unclosed', "of the catalogue is broken"),
        (catalogue() + b"1,2\n", "of the catalogue is broken"),
        (catalogue().replace(b"61001", b"sixty", 1), "of the catalogue is broken"),
    ):
        feed.write_bytes(content)
        with pytest.raises(UserError, match=message):
            drawn(tmp_path)
    feed.unlink()
    with pytest.raises(UserError, match="give --catalogue"):
        drawn(tmp_path)
    for text, message in (("", "lists no books"), ("1,x\nbook,y\n", "Line 2 of"), ("\n", "Line 1 of")):
        metadata.write_text(text)
        with pytest.raises(UserError, match=message):
            drawn(tmp_path)
    assert not (tmp_path / "pg22").exists()


def test_ranges_begin_where_the_last_one_ends() -> None:
    assert [bucket(n) for n in (4, 5, 9, 10, 99, 100, 499, 500, 999, 1000)] == [
        None, "S1", "S1", "S2", "S2", "S3", "S3", "S4", "S4", "S5",
    ]  # fmt: skip


def test_a_tokenizer_is_a_file_or_a_hint(tmp_path: Path) -> None:
    tokenizer().save(str(tmp_path / "tokenizer.json"))
    loaded = load_tokenizer(tmp_path / "tokenizer.json")
    assert hashlib.sha256(loaded.to_str().encode()).digest() == hashlib.sha256(tokenizer().to_str().encode()).digest()
    with pytest.raises(UserError, match="give --tokenizer"):
        load_tokenizer(tmp_path / "absent.json")
