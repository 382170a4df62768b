"""The tasks over files of other suites: what they load, how they are scored, and what identifies a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import suite_files
import torch

from contextlab import backbone as backbones
from contextlab.accounting.ledger import Ledger, Meter
from contextlab.benchmarks.protocols.suites import SuiteProtocol
from contextlab.benchmarks.tasks.suites import (
    Helmet,
    HelmetConfig,
    InfiniteBench,
    Loft,
    LongBench,
    LongBenchV2,
    LongMemEval,
    SuiteConfig,
    SuiteTasks,
)
from contextlab.errors import UserError
from contextlab.methods.closed_book import ClosedBook
from contextlab.methods.full import Full
from contextlab.methods.sliding import Sliding

KINDS: tuple[type[SuiteTasks], ...] = (LongBench, LongBenchV2, InfiniteBench, LongMemEval, Helmet, Loft)
JUDGE = """
def strict(prediction, answers):
    return prediction.strip() in answers

def asking(prediction, answers, question):
    return question.details["task"] == "hotpotqa"
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("CONTEXTLAB_DATA", raising=False)
    monkeypatch.setenv("CONTEXTLAB_CACHE", str(tmp_path / "cache"))
    return suite_files.write(tmp_path / "data")


def entry(task: SuiteTasks, text: str, root: Path, split: str = "hotpotqa") -> dict[str, Any]:
    question = task.load(split, root).examples[0].questions[0]
    return task.protocol(split).compare(text, question)


@pytest.mark.parametrize("kind", KINDS)
def test_files_and_sample_are_what_their_notes_say(kind: type[SuiteTasks], root: Path) -> None:
    task = kind()
    data = task.load(task.default_split if kind is not LongBench else "hotpotqa", root)
    title = task.suite.title
    questions = sum(len(reading.questions) for reading in data.examples)
    assert questions == 4
    assert (
        data.note
        == f"your own data in the layout of {title}, not verified against the publisher: {questions} questions"
    )
    sample = task.load(task.default_split, None)
    assert (sample.source, sample.note) == ("sample", f"generated sample, not {title}")
    assert sample == task.load(task.default_split, None)


def test_missing_files_are_named_in_the_folder_and_in_the_cache(root: Path) -> None:
    with pytest.raises(UserError, match=r"There is no file .*longbench/data/qmsum\.jsonl"):
        LongBench().load("qmsum", root)
    root.parent.joinpath("cache").mkdir()
    root.rename(root.parent / "cache/data")
    assert LongBench().load("hotpotqa", None).source == "local"
    (root.parent / "cache/data/helmet/data/kilt/nq-train-multikilt_1000_k3_dep6.jsonl").unlink()
    with pytest.raises(UserError, match=r"There is no file helmet/data/kilt/nq-train.* in the cache"):
        Helmet().load("nq", None)
    assert Helmet(HelmetConfig(length="128k")).load("nq", None).source == "sample"


def test_only_the_first_line_of_an_answer_counts_in_the_tasks_that_say_so(root: Path) -> None:
    pytest.importorskip("rouge")
    written = "\nThey meet.\nDialogue: again"
    assert entry(LongBench(), written, root, "samsum") == {"prediction": "They meet.", "score": pytest.approx(1.0)}
    assert entry(LongBench(), written, root)["prediction"] == written
    assert entry(LongBench(), "    return 3\n", root, "lcc")["score"] == 1.0
    assert entry(LongBench(), "return 3\n", root, "lcc")["score"] < 1.0


def test_the_score_of_several_tasks_is_the_mean_of_their_means(root: Path) -> None:
    task = LongBench()
    tasks = task.suite.chosen("all_e")
    names = ("hotpotqa_e", "lcc_e")
    protocol = SuiteProtocol(
        [member for member in tasks if member.name in names], task.options("own"), {}, ("task", "length"), "plain",
        task.protocol("hotpotqa").form,
    )  # fmt: skip
    entries = [
        ("hotpotqa_e", "0-4k", 1.0),
        ("hotpotqa_e", "4-8k", 0.0),
        ("hotpotqa_e", "8k+", 0.5),
        ("lcc_e", "8k+", 1.0),
    ]
    records = [
        {"work": f"w{n}", "questions": [{"task": name, "length": length, "score": value}]}
        for n, (name, length, value) in enumerate(entries)
    ]
    metrics = protocol.summarise(records)
    assert {name: metric.value for name, metric in metrics.items()} == pytest.approx(
        {"score": 0.75, "score_hotpotqa_e": 0.5, "score_lcc_e": 1, "score_0-4k": 1, "score_4-8k": 0, "score_8k+": 0.75}
    )
    assert [part.stratum for record in records for part in protocol.parts(record)["score"]] == [
        *("hotpotqa_e", "hotpotqa_e", "hotpotqa_e", "lcc_e")
    ]


def test_a_judge_of_ones_own_comes_before_the_score_and_identifies_the_run(root: Path) -> None:
    path = root.parent / "judge.py"
    path.write_text(JUDGE)
    strict, asking = (LongBench(SuiteConfig(metric=f"{path}:{name}")) for name in ("strict", "asking"))
    assert strict.protocol("hotpotqa").measures == ("strict", "score")
    judged = entry(strict, " Rome in Italy", root)
    assert (judged["strict"], judged["score"]) == (0.0, 0.5)
    assert entry(asking, "x", root)["asking"] == 1.0
    spelled = strict.spelled("hotpotqa")
    assert spelled == "hotpotqa(metric=judge.py:strict)"
    before = strict.identified(spelled)
    path.write_text(JUDGE + "\n")
    assert strict.identified(spelled) != before
    with pytest.raises(UserError, match="names no function"):
        SuiteConfig(metric="f1")


def test_a_chat_template_stands_only_around_the_tasks_that_have_one() -> None:
    task = LongBench(SuiteConfig(chat=True))
    assert (task.protocol("hotpotqa").wording, task.protocol("trec").wording) == ("chat", "plain")
    with pytest.raises(UserError, match=r"Some tasks of longbench/all are asked without a chat template"):
        task.protocol("all")


def test_prompts_differ_by_task_and_every_split_has_a_protocol() -> None:
    for kind in KINDS:
        prompts = {split: kind().protocol(split).prompt for split in kind.splits}
        assert all("{context}" in prompt for prompt in prompts.values())
    assert "Question: {input}" in LongBench().protocol("qasper").prompt


@pytest.mark.parametrize("name", ["full", "closed-book", "sliding"])
def test_a_run_reads_a_context_once_and_keeps_both_ends(name: str, root: Path) -> None:
    toy = backbones.load("tiny-llama")
    method = {"full": Full, "closed-book": ClosedBook, "sliding": Sliding}[name](toy)
    meter = Meter(method, Ledger(torch.device("cpu")))
    task = InfiniteBench(SuiteConfig(tokens=40))
    reading, other = task.load("passkey", root).examples
    protocol = task.protocol("passkey")
    if name == "closed-book":
        assert protocol.evaluate(meter, reading, other)["questions"][0]["score"] in (0.0, 1.0)
        return
    kept = protocol.form.kept(toy.encode(reading.context.rstrip()), 40)
    text = toy.decode(kept)
    assert text.startswith(reading.context[:20])
    assert reading.context.rstrip().endswith(text[20:])
    record = protocol.evaluate(meter, reading, other)
    assert record["context_tokens"] == 40
    assert [entry["task"] for entry in record["questions"]] == ["passkey", "passkey"]
    json.dumps(record)
