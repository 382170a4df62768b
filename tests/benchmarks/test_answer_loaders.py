from __future__ import annotations

import hashlib
import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import upstream_files as upstream

from contextlab import packed
from contextlab.benchmarks.task import Task
from contextlab.benchmarks.tasks.key_value import KeyValue
from contextlab.benchmarks.tasks.leval import LEval, QuALITY
from contextlab.benchmarks.tasks.locomo import LoCoMo
from contextlab.benchmarks.tasks.longeval import LongEval
from contextlab.benchmarks.tasks.many_label import ManyLabel
from contextlab.benchmarks.tasks.metaicl import MetaICL
from contextlab.benchmarks.tasks.msc import MSC, MSCPerplexity
from contextlab.benchmarks.tasks.multidoc import MultiDoc
from contextlab.benchmarks.tasks.needle import Needle
from contextlab.benchmarks.tasks.qmsum import QMSum
from contextlab.benchmarks.tasks.situatedqa import SituatedQA
from contextlab.benchmarks.tasks.squad import SQuAD
from contextlab.benchmarks.tasks.squad_icl import SQuADICL
from contextlab.benchmarks.tasks.squality import SQuALITY
from contextlab.benchmarks.tasks.streamingqa import StreamingQA, StreamingQAConfig
from contextlab.benchmarks.tasks.suites import Helmet, InfiniteBench, Loft, LongBench, LongBenchV2, LongMemEval
from contextlab.errors import UserError

# By task: a split and one of its files.
SOURCES: list[tuple[Task, str, str]] = [
    (SQuAD(), "512", "squad/dev-v1.1.json"),
    (SQuADICL(), "dev", "squad/dev-v1.1.json"),
    (StreamingQA(), "512", "streamingqa/streaminqa_eval.jsonl.gz"),
    (StreamingQA(), "512", "streamingqa/wmt/news-docs.2018.en.filtered.gz"),
    (SituatedQA(), "dev", "streamingqa/situatedqa/temp.dev.jsonl"),
    (MSC(), "self-instruct", "msc/msc_self_instruct.jsonl.gz"),
    (MSCPerplexity(), "session-5", "msc/msc_dialogue/session_5/test.txt"),
    (LoCoMo(), "all", "locomo/locomo10.json.gz"),
    (KeyValue(), "75", "lost_in_the_middle/kv_retrieval_data/kv-retrieval-75_keys.jsonl"),
    (MetaICL(), "k4", "metaicl/data/glue-rte/glue-rte_16_13_test.jsonl"),
    (LongBench(), "qasper", "longbench/data/qasper.jsonl"),
    (LongBench(), "trec_e", "longbench/data/trec_e.jsonl"),
    (LongBenchV2(), "all", "longbench-v2/data.json"),
    (InfiniteBench(), "code_debug", "infinitebench/code_debug.jsonl"),
    (LongMemEval(), "s", "longmemeval/longmemeval_s_cleaned.json"),
    (Helmet(), "nq", "helmet/data/kilt/nq-dev-multikilt_1000_k50_dep6.jsonl"),
    (Helmet(), "nq", "helmet/data/kilt/nq-train-multikilt_1000_k3_dep6.jsonl"),
    (Helmet(), "json_kv", "helmet/data/json_kv/test_k105_dep6.jsonl"),
    (Loft(), "rag-nq", "loft/data/rag/nq/32k/dev_queries.jsonl"),
    (Loft(), "retrieval-nq", "loft/data/retrieval/nq/32k/corpus.jsonl"),
    (ManyLabel(), "clinc150", "clinc150/data_full.json.xz"),
    (QMSum(), "test", "qmsum/data/ALL/jsonl/test.jsonl"),
    (SQuALITY(), "test", "squality/data/v1-3/txt/test.jsonl"),
    (QuALITY(), "leval", "leval/LEval-data/Closed-ended-tasks/quality.jsonl"),
    (LEval(), "natural_question", "leval/LEval-data/Open-ended-tasks/natural_question.jsonl"),
    (LongEval(), "lines-200", "longeval/lines/testcases/200_lines.jsonl"),
    (LongEval(), "topics", "longeval/topics/conversations.jsonl"),
    (MultiDoc(), "10", "lost_in_the_middle/qa_data/nq-open-oracle.jsonl.gz"),
]
EVERY = pytest.mark.parametrize(("task", "split", "file"), SOURCES, ids=[file for _, _, file in SOURCES])
EMPTY = [b"", b"\n \n", b"[]", b"{}\n", b'{"a": 1}\n', b"null", b"\xff\xfe{}", b"3\n", b"{"]
TASKS: list[Task] = [
    *(SQuAD(), SQuADICL(), StreamingQA(), SituatedQA(), MSC(), MSCPerplexity(), LoCoMo(), Needle(), MetaICL()),
    *(LongBench(), LongBenchV2(), InfiniteBench(), LongMemEval(), Helmet(), Loft()),
    *(ManyLabel(), QMSum(), SQuALITY(), QuALITY(), LEval(), LongEval(), MultiDoc()),
]
MUTATIONS = 40
SECONDS = float(os.environ.get("CONTEXTLAB_FUZZ_SECONDS", "0")) / len(SOURCES)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("CONTEXTLAB_DATA", raising=False)
    monkeypatch.setenv("CONTEXTLAB_CACHE", str(tmp_path / "cache"))
    return upstream.write(tmp_path / "data")


def refused(task: Task, split: str, root: Path) -> str:
    """The error message for a data folder."""
    with pytest.raises(UserError) as caught:
        task.load(split, root)
    message = str(caught.value)
    assert message.endswith(".")
    assert "\n" not in message.replace("\\n", "")
    return message


@EVERY
def test_what_is_loaded_is_named_and_has_ids_of_its_own(task: Task, split: str, file: str, root: Path) -> None:
    dataset = task.load(split, root)
    assert dataset.source == "local"
    assert len(dataset.sha256) == 64
    assert len({example.id for example in dataset.examples}) == len(dataset.examples)
    questions = [question.id for example in dataset.examples for question in getattr(example, "questions", ())]
    assert len(set(questions)) == len(questions)
    assert dataset == task.load(split, root)


@EVERY
def test_without_data_a_generated_sample_is_used_and_named(
    task: Task, split: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONTEXTLAB_CACHE", str(tmp_path))
    monkeypatch.delenv("CONTEXTLAB_DATA", raising=False)
    dataset = task.load(split, None)
    assert dataset.source == "sample"
    assert dataset.note.startswith("generated")
    assert dataset.examples
    assert dataset == task.load(split, None)


@EVERY
def test_data_in_the_cache_is_found(
    task: Task, split: str, file: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = root.parent / "cache"
    cache.mkdir()
    root.rename(cache / "data")
    assert task.load(split, None).source == "local"


@EVERY
def test_a_missing_file_is_refused(task: Task, split: str, file: str, root: Path) -> None:
    (root / file).unlink()
    assert packed.plain_name(Path(file).name) in refused(task, split, root)


@EVERY
@pytest.mark.parametrize("content", EMPTY)
def test_files_without_records_are_refused(task: Task, split: str, file: str, content: bytes, root: Path) -> None:
    upstream.put(root / file, content)
    assert str(root / file) in refused(task, split, root)


@EVERY
def test_a_truncated_file_is_refused(task: Task, split: str, file: str, root: Path) -> None:
    path = root / file
    raw = path.read_bytes()
    path.write_bytes(raw[: len(raw) * 2 // 3])
    assert str(path) in refused(task, split, root)


@pytest.mark.parametrize(("task", "split", "file"), [s for s in SOURCES if ".jsonl" in s[2]])
def test_a_broken_line_is_named(task: Task, split: str, file: str, root: Path) -> None:
    path = root / file
    rows = contents(path).split(b"\n")
    upstream.put(path, b"\n".join([*rows[:2], rows[2][:-9], *rows[3:]]))
    assert f"Line 3 of {path}" in refused(task, split, root)


@EVERY
def test_mutated_files_are_read_or_refused_in_one_sentence(task: Task, split: str, file: str, root: Path) -> None:
    path, draw = root / file, random.Random(file)
    raw, text, started, count = path.read_bytes(), contents(path), time.monotonic(), 0
    messages: list[str] = []
    while count < MUTATIONS or time.monotonic() - started < SECONDS:
        count += 1
        if draw.random() < 0.2:
            path.write_bytes(mutated(raw, draw))
        else:
            upstream.put(path, mutated(text, draw))
        try:
            examples = task.load(split, root).examples
        except UserError as error:
            messages.append(str(error))
            continue
        assert examples
        repr(examples).encode()
        for example in examples:
            assert getattr(example, "questions", True)
    assert messages
    assert all(str(root) in message for message in messages)


def contents(path: Path) -> bytes:
    return packed.content(path)


VALUES = (b"null", b"-1", b"1e999", b'""', b"[]", b"{}", b"[null]", b'"\\ud800"', b"9" * 5000, b"true", b"[" * 3000)


def mutated(content: bytes, draw: random.Random) -> bytes:
    """The content with one to three changes of bytes, of pieces, or of the type of JSON values."""
    for _ in range(draw.randint(1, 3)):
        start = draw.randrange(max(len(content), 1))
        end = min(len(content), start + draw.choice((1, 1, 5, 60)))
        piece = content[start:end]
        changes: list[Callable[[], bytes]] = [
            lambda piece=piece: b"",
            lambda piece=piece: piece * 2,
            lambda piece=piece: bytes(draw.randrange(256) for _ in piece),
            lambda piece=piece: draw.choice(b'"\\{}[],:\n\t0').to_bytes(),
            lambda piece=piece: draw.choice(VALUES),
        ]
        if draw.random() < 0.5:
            quote = content.find(b'": ', start)
            comma = content.find(b",", quote)
            if 0 <= quote < comma:
                start, end, changes = quote + 3, comma, changes[-1:]
        content = content[:start] + draw.choice(changes)() + content[end:]
    return content[: draw.randrange(len(content) + 1)] if draw.random() < 0.1 else content


@pytest.mark.parametrize("task", TASKS)
def test_an_unknown_split_is_refused_with_the_nearest(task: Task) -> None:
    with pytest.raises(UserError, match="There is no split of"):
        task.load("nonsense", None)
    with pytest.raises(UserError, match="There is no split of"):
        task.protocol("nonsense")


def test_squad_paragraphs_come_with_their_questions_and_different_answers(root: Path) -> None:
    dataset = SQuAD().load("512", root)
    assert len(dataset.examples) == 1
    first = dataset.examples[0].questions[0]
    assert (first.text, first.answers) == ("Where does river 0 flow?", ("to the sea 0", "sea 0"))
    assert dataset.sha256 == hashlib.sha256((root / "squad/dev-v1.1.json").read_bytes()).hexdigest()
    assert dataset.note == "your own data in the layout of SQuAD v1.1, not verified against the publisher: 12 questions"


def test_streamingqa_articles_are_joined_by_sorting_key_and_come_by_date(root: Path) -> None:
    (reading,) = StreamingQA().load("512", root).examples
    order = [int(text.split()[1].rstrip(".")) for text in reading.context.split("\n\n") if text.startswith("News")]
    assert order == sorted(range(5), key=upstream.sorting_key)
    for question in reading.questions:
        assert upstream.sorting_key(int(question.id[5:]) // 2)[20:] in {upstream.sorting_key(n)[20:] for n in order}
    assert reading.questions[0].details["evidence"] == "2012-10-30"
    ages = {split: len(StreamingQA().load(split, root).examples[0].questions) for split in ("512-recent", "512-past")}
    assert ages == {"512-recent": 4, "512-past": 5}


def test_streamingqa_articles_can_come_in_generative_adapters_order(root: Path) -> None:
    rows = np.random.RandomState(0).permutation(9)
    by_date, shuffled = (
        StreamingQA(StreamingQAConfig(order=order)).load("512", root).examples[0] for order in ("date", "shuffled")
    )
    order = [int(part.split()[1][:-1]) for part in shuffled.context.split("\n\n") if part.startswith("News")]
    assert order == list(dict.fromkeys(row // 2 for row in rows)) != sorted(order, key=upstream.sorting_key)
    assert {question.id for question in shuffled.questions} == {question.id for question in by_date.questions}
    assert (by_date.id, shuffled.id) == ("512/0", "512-shuffled/0")


def test_streamingqa_says_whether_the_three_answers_are_one(root: Path) -> None:
    assert StreamingQA().load("512", root).note.endswith("against the publisher: 9 questions")
    records = [{**record, "answers": ["x", "x", "x"]} for record in upstream.streamingqa()]
    upstream.put(root / "streamingqa/streaminqa_eval.jsonl.gz", upstream.lines(records))
    assert StreamingQA().load("512", root).note.startswith("re-laid: ")


def test_streamingqa_refuses_archives_that_lack_an_article(root: Path) -> None:
    upstream.put(root / "streamingqa/wmt/news-docs.2018.en.filtered.gz", b"20180101\tYQ==\tYQ==\n")
    assert "lacks 2 articles" in refused(StreamingQA(), "512", root)


def test_situatedqa_has_nothing_to_read(root: Path) -> None:
    dataset = SituatedQA().load("dev", root)
    assert [len(example.questions) for example in dataset.examples] == [16, 4]
    assert {example.context for example in dataset.examples} == {""}
    assert dataset.examples[0].questions[3].text == "who leads as of 2003"
    with pytest.raises(UserError, match="nothing to read"):
        SituatedQA().protocol("dev", "wrong")


def test_msc_questions_about_the_same_sessions_share_a_reading(root: Path) -> None:
    dataset = MSC().load("self-instruct", root)
    assert [(e.work, len(e.questions)) for e in dataset.examples] == [("conv-0", 3), ("conv-1", 3), ("train:7_q1", 1)]
    text = dataset.examples[0].context
    assert text.startswith("Session 1\nSpeaker 1: conv-0 turn 0 of 1\nSpeaker 2: conv-0 turn 1 of 1\n")
    assert "\n\nSession 5\nSpeaker 2: conv-0 turn 0 of 5\nSpeaker 1: " in text
    assert dataset.note.startswith("re-laid: conversations of other origin")
    upstream.put(root / "msc/msc_self_instruct.jsonl.gz", upstream.lines([upstream.msc("train:7", 1)]))
    assert MSC().load("self-instruct", root).note.endswith("not verified against the publisher: 1 record")


def test_a_session_without_a_response_is_refused(root: Path) -> None:
    record = upstream.msc("train:1")
    upstream.put(
        root / "msc/msc_dialogue/session_5/test.txt", upstream.lines([{**record, "dialog": record["dialog"][:1]}])
    )
    assert "has no response" in refused(MSCPerplexity(), "session-5", root)


def test_locomo_sessions_are_in_the_order_of_their_numbers_with_dates_and_pictures(root: Path) -> None:
    first, second = LoCoMo().load("all", root).examples
    headings = [line for line in first.context.split("\n") if line.startswith("Session")]
    assert headings == [f"Session {n}, {n} pm on 8 May, 2023" for n in (1, 2, 10)]
    assert "Ann: said 1 (shares a picture: a red boat)" in first.context
    assert (first.work, second.work) == ("conv-0", "conv-1")
    answers = {question.details["category"]: question.answers for question in first.questions}
    assert answers["temporal"] == ("2022",)
    assert answers["adversarial"] == ("not mentioned",)


def test_metaicl_demonstrations_are_shared_nested_and_k_of_them(root: Path) -> None:
    shown: dict[int, set[str]] = {}
    for shots in (1, 2, 4, 8, 16):
        examples = MetaICL().load(f"k{shots}", root).examples
        contexts = {example.id: example.context for example in examples}
        assert contexts["codah/13/0"] == contexts["codah/13/16"] != contexts["codah/100/0"]
        demonstrations = contexts["codah/13/0"].split("\n\n")
        assert all(part.startswith("Input: train 13") for part in demonstrations)
        assert len(set(demonstrations)) == shots
        assert shown.get(shots // 2, set()) <= set(demonstrations)
        shown[shots] = set(demonstrations)


def test_metaicl_takes_the_first_items_of_every_task_and_seed_first(root: Path) -> None:
    examples = MetaICL().load("k1", root).examples
    assert [example.id for example in examples] == [
        *("codah/13/0", "glue-rte/13/0", "codah/100/0", "glue-rte/100/0"),
        *("codah/13/16", "glue-rte/13/16", "codah/100/16", "glue-rte/100/16"),
    ]
    assert [len(example.questions) for example in examples] == [16] * 4 + [4] * 4


def test_metaicl_names_what_is_missing_and_refuses_what_is_not_there(root: Path) -> None:
    note = MetaICL().load("k16", root).note
    assert "MetaICL hr_to_lr, not verified against the publisher: 2 tasks of 26, of which 0 have known files" in note
    assert "; seeds 13, 100; missing ai2_arc, " in note
    train = root / "metaicl/data/codah/codah_16_13_train.jsonl"
    upstream.put(train, upstream.lines(upstream.metaicl("codah", 15, "train")))
    assert "smaller k" in refused(MetaICL(), "k16", root)
    broken: list[Any] = upstream.metaicl("codah", 16, "train")
    broken[4]["output"] = "a whale"
    upstream.put(train, upstream.lines(broken))
    assert f"Line 5 of {train} has an output" in refused(MetaICL(), "k16", root)


def test_the_shared_data_is_what_its_description_says(shared: Path) -> None:
    data = shared / "data"
    counts = {
        type(task).__name__: sum(len(example.questions) for example in task.load(split, data).examples)
        for task, split in ((SQuAD(), "1k"), (StreamingQA(), "1k"), (MSC(), "self-instruct"), (LoCoMo(), "all"))
    }
    assert counts == {"SQuAD": 612, "StreamingQA": 612, "MSC": 300, "LoCoMo": 1020}
    assert len(MSCPerplexity().load("session-5", data).examples) == 60
    note = MetaICL().load("k16", data).note
    assert "18 of 26 tasks: 6 real, 12 converted" in note
    assert json.dumps(note).count("quartz") == 2
