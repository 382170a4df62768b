from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from contextlab import registry
from contextlab.benchmarks.data.sources import note_revision
from contextlab.benchmarks.tasks import pg22
from contextlab.benchmarks.tasks.chapterbreak import ChapterBreak
from contextlab.benchmarks.tasks.pg22 import PG22
from contextlab.errors import UserError


@pytest.fixture(autouse=True)
def no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONTEXTLAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CONTEXTLAB_DATA", raising=False)
    monkeypatch.setattr(huggingface_hub, "is_offline_mode", lambda: True)


def example(tag: str) -> dict[str, Any]:
    return {"ctx": f"before {tag}", "pos": f"after {tag}", "negs": [f"other {i} of {tag}" for i in range(5)]}


def upstream() -> dict[str, Any]:
    return {
        "pg19": {"10": [example("10a"), example("10b"), example("10c")], "11": [example("11a")]},
        "ao3": {"x": [example("xa"), example("xb")]},
    }


def write_chapterbreak(root: Path, content: Any, tokens: int = 4096) -> Path:
    path = root / "chapterbreak" / f"chapterbreak_ctx_{tokens}.json.gz"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(json.dumps(content).encode(), mtime=0))
    return path


def write_pg22(root: Path, books: dict[str, tuple[str, int]]) -> Path:
    texts = root / "pg22" / "texts"
    texts.mkdir(parents=True)
    lines = []
    for name, (bucket, tokens) in books.items():
        text = f"_{name}_\nhard-wrapped\n"
        (texts / f"{name}.txt.gz").write_bytes(gzip.compress(text.encode()))
        digest = hashlib.sha256(text.encode()).hexdigest()
        file = f"texts/{name}.txt.gz"
        lines.append({"id": name, "bucket": bucket, "gpt2_tokens": tokens, "file": file, "sha256_txt": digest})
    (root / "pg22" / "books.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    return texts


def test_chapterbreak_takes_the_first_example_of_every_work_before_the_second_of_any(tmp_path: Path) -> None:
    path = write_chapterbreak(tmp_path, upstream())
    task = ChapterBreak()
    data = task.load("ctx-4k", tmp_path)
    assert [item.id for item in data.examples] == ["pg19/10/0", "pg19/11/0", "pg19/10/1", "pg19/10/2"]
    assert [item.work for item in data.examples] == ["pg19/10", "pg19/11", "pg19/10", "pg19/10"]
    assert (data.source, data.sha256) == ("local", hashlib.sha256(path.read_bytes()).hexdigest())
    assert [item.id for item in task.load("ctx-4k-ao3", tmp_path).examples] == ["ao3/x/0", "ao3/x/1"]
    everything = [item.id for item in task.load("ctx-4k-all", tmp_path).examples]
    assert everything == ["pg19/10/0", "pg19/11/0", "ao3/x/0", "pg19/10/1", "ao3/x/1", "pg19/10/2"]


def test_chapterbreak_candidates_are_the_upstream_texts(tmp_path: Path) -> None:
    write_chapterbreak(tmp_path, upstream())
    for item in ChapterBreak().load("ctx-4k-all", tmp_path).examples:
        tag = item.context.removeprefix("before ")
        assert item.candidates[item.answer] == f"after {tag}"
        assert set(item.candidates) == {f"after {tag}", *(f"other {i} of {tag}" for i in range(5))}


def test_chapterbreak_says_what_the_data_is(tmp_path: Path) -> None:
    path = write_chapterbreak(tmp_path, upstream())
    own = "your own data in the layout of ChapterBreak, not verified against the publisher: 4 examples"
    assert ChapterBreak().load("ctx-4k", tmp_path).note == own
    (path.parent / "provenance.jsonl").touch()
    assert ChapterBreak().load("ctx-4k", tmp_path).note.startswith("re-laid: ")
    assert ChapterBreak().load("ctx-512", None).note == "generated sample, not ChapterBreak"


def test_chapterbreak_gives_the_hub_revision(tmp_path: Path) -> None:
    (tmp_path / "cache" / "data").mkdir(parents=True)
    path = write_chapterbreak(tmp_path / "cache" / "data", upstream())
    note_revision(path.with_name("chapterbreak_ctx_4096.json"), "abc123", hashlib.sha256(path.read_bytes()).hexdigest())
    data = ChapterBreak().load("ctx-4k", None)
    note = "ChapterBreak of hub revision abc123, for which nobody publishes a digest"
    assert (data.source, data.note) == ("hub", note)
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()) + b" ", mtime=0))
    data = ChapterBreak().load("ctx-4k", None)
    assert (data.source, data.note[:8]) == ("local", "your own")


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in example("bad").items() if key != name}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"ao3": {}}, "'pg19'"),
        ({"pg19": {"10": "text"}}, "Sub-set pg19"),
        ({"pg19": {"10": [example("good"), without("pos")]}}, "Example pg19/10/1 .*'pos'"),
        ({"pg19": {"10": [without("ctx")]}}, "'ctx'"),
        ({"pg19": {"10": [{**example("bad"), "negs": ["one", 2]}]}}, "'negs'"),
        ([], "'pg19'"),
    ],
)
def test_chapterbreak_names_the_broken_example(tmp_path: Path, content: Any, message: str) -> None:
    write_chapterbreak(tmp_path, content)
    with pytest.raises(UserError, match=message) as error:
        ChapterBreak().load("ctx-4k", tmp_path)
    assert "chapterbreak_ctx_4096.json.gz" in str(error.value)


@pytest.mark.parametrize("split", ["ctx-512", "ctx-8k", "ctx-2k-ao3", "ctx-1k-all"])
def test_the_chapterbreak_sample_has_24_examples_a_sub_set(split: str) -> None:
    data = ChapterBreak().load(split, None)
    assert data.source == "sample"
    assert len(data.examples) == len({item.id for item in data.examples}) == (48 if split.endswith("all") else 24)
    assert data == ChapterBreak().load(split, None)


def test_chapterbreak_lengths_reach_the_protocol() -> None:
    assert ChapterBreak().protocol("ctx-8k-ao3").context_tokens == 8192
    assert ChapterBreak().protocol("ctx-512").suffix_tokens == 128
    assert len(ChapterBreak.splits) == 18


def test_chapterbreak_of_6k_is_the_end_of_8k(tmp_path: Path) -> None:
    path = write_chapterbreak(tmp_path, upstream())
    path.rename(path.with_name("chapterbreak_ctx_8192.json.gz"))
    assert ChapterBreak().load("ctx-6k", tmp_path).examples == ChapterBreak().load("ctx-8k", tmp_path).examples
    assert ChapterBreak().protocol("ctx-6k").context_tokens == 6144


def test_chapterbreak_takes_upstreams_way_as_a_setting(tmp_path: Path) -> None:
    task, split = registry.task_and_split("chapterbreak", "ctx-2k-ao3(upstream=yes)")
    assert task.spelled(split) == "ctx-2k-ao3(upstream=true)"
    assert isinstance(task, ChapterBreak)
    assert task.protocol("ctx-2k").whole
    assert not ChapterBreak().protocol("ctx-2k").whole
    assert task.load("ctx-512", None) == ChapterBreak().load("ctx-512", None)


def test_pg22_splits_by_bucket_and_the_longest_by_tokens(tmp_path: Path) -> None:
    write_pg22(tmp_path, {"b": ("S2", 20_000), "a": ("S2", 90_000), "c": ("S4", 700_000), "d": ("S4", 1_200_000)})
    load = PG22().load
    assert [book.id for book in load("S2", tmp_path).examples] == ["b", "a"]
    assert load("S2", tmp_path).examples[0].text == "_b_\nhard-wrapped\n"
    assert [book.id for book in load("S4", tmp_path).examples] == ["c"]
    assert [book.id for book in load("S5", tmp_path).examples] == ["d"]
    with pytest.raises(UserError, match=r"no book of split S1: choose one of S2, S4, S5\."):
        load("S1", tmp_path)
    assert load("S2", tmp_path).note.endswith("not verified against the publisher: 2 books")


def test_pg22_advises_only_splits_that_exist(tmp_path: Path) -> None:
    write_pg22(tmp_path, {"a": ("S0", 3_000), "b": ("S2", 20_000)})
    with pytest.raises(UserError, match=r"no book of split S5: choose one of S2\."):
        PG22().load("S5", tmp_path)
    write_pg22(tmp_path / "short", {"a": ("S0", 3_000)})
    with pytest.raises(UserError, match=r"no book of split S5: build the set again"):
        PG22().load("S5", tmp_path / "short")


def test_pg22_digest_covers_the_texts_of_the_split(tmp_path: Path) -> None:
    write_pg22(tmp_path / "one", {"a": ("S1", 6_000), "b": ("S2", 20_000)})
    write_pg22(tmp_path / "two", {"a": ("S1", 6_000), "c": ("S2", 20_000)})
    first, second = ([PG22().load(split, tmp_path / name).sha256 for split in ("S1", "S2")] for name in ("one", "two"))
    assert first[0] == second[0]
    assert first[1] != second[1]


def test_pg22_notices_changed_missing_and_unpacked_texts(tmp_path: Path) -> None:
    texts = write_pg22(tmp_path, {"a": ("S1", 6_000)})
    packed = texts / "a.txt.gz"
    (texts / "a.txt").write_bytes(gzip.decompress(packed.read_bytes()))
    packed.unlink()
    assert PG22().load("S1", tmp_path).examples[0].id == "a"
    (texts / "a.txt").write_text("another text")
    with pytest.raises(UserError, match="sha256"):
        PG22().load("S1", tmp_path)
    (texts / "a.txt").unlink()
    with pytest.raises(UserError, match=r"There is no file .*a\.txt\.gz"):
        PG22().load("S1", tmp_path)


def test_pg22_names_the_broken_line(tmp_path: Path) -> None:
    write_pg22(tmp_path, {"a": ("S1", 6_000)})
    books = tmp_path / "pg22" / "books.jsonl"
    good = books.read_text()
    for bad, message in (("{oops", "Line 3 of .*not valid JSON"), ('{"id": "b"}', "Line 3 of .*'file'")):
        books.write_text(f"{good}\n{bad}\n")
        with pytest.raises(UserError, match=message):
            PG22().load("S1", tmp_path)


def test_the_pg22_sample_reaches_the_length_of_its_split(monkeypatch: pytest.MonkeyPatch) -> None:
    for split, (count, words) in pg22.SAMPLE_SIZES.items():
        small = min(words, 16_000)
        monkeypatch.setitem(pg22.SAMPLE_SIZES, split, (count, small))
        data = PG22().load(split, None)
        assert (data.source, data.note) == ("sample", "generated sample, not PG-22")
        assert len(data.examples) == len({document.text for document in data.examples}) == count
        assert all(small <= len(document.text.split()) <= small * 1.05 + 200 for document in data.examples)
    assert len({PG22().load(split, None).sha256 for split in PG22.splits}) == 5


@pytest.mark.parametrize("task", [ChapterBreak(), PG22()])
def test_an_unknown_split_is_an_error_with_a_hint(task: ChapterBreak | PG22) -> None:
    assert task.check_split(None) == task.default_split
    for use in (lambda: task.load("S22", None), lambda: task.protocol("ctx-3k")):
        with pytest.raises(UserError, match=f"no split of {task.name}"):
            use()
