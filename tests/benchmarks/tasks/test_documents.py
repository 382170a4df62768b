"""Tasks whose documents are read once for several questions: QMSum, SQuALITY, L-Eval, LongEval, multidoc."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import upstream_files as upstream
from hypothesis import given
from hypothesis import strategies as st

import contextlab
from contextlab import registry
from contextlab.benchmarks.examples import Question, Reading
from contextlab.benchmarks.metrics import qa
from contextlab.benchmarks.tasks import leval, longeval, multidoc
from contextlab.benchmarks.tasks.longeval import LongEval, LongEvalConfig
from contextlab.benchmarks.tasks.multidoc import MultiDoc, MultiDocConfig
from contextlab.errors import UserError

# By task and split: documents and questions of the data folder.
KNOWN = {
    ("qmsum", "val"): (18, 18 + 119),
    ("qmsum", "test"): (18, 19 + 133),
    ("squality", "train"): (49, 245),
    ("squality", "dev"): (13, 65),
    ("squality", "test"): (25, 125),
    ("quality", "leval"): (8, 112),
    ("leval", "scientific_qa"): (12, 92),
    ("leval", "natural_question"): (11, 54),
    ("leval", "multidoc_qa"): (12, 85),
    ("leval", "topic_retrieval_longchat"): (50, 150),
    **{("longeval", f"lines-{count}"): (25, 25) for count in longeval.LINES},
    ("longeval", "topics"): (30, 30),
    ("multidoc", "10"): (3 * 1260, 3 * 1260),
}


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CONTEXTLAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CONTEXTLAB_DATA", raising=False)
    upstream.suites(tmp_path / "data")
    return tmp_path / "data"


def readings(name: str, data: Path | None) -> list[Reading]:
    task_name, _, text = name.partition("/")
    task, split = registry.task_and_split(task_name, text)
    return list(task.load(split, data).examples)


@pytest.mark.parametrize(("name", "split"), KNOWN)
def test_the_files_of_the_data_folder_are_read_whole(name: str, split: str, shared: Path) -> None:
    settings = "(samples=5000)" if name == "multidoc" else ""
    task, split_name = registry.task_and_split(name, split + settings)
    dataset = task.load(split_name, shared / "data")
    assert dataset.note.startswith("real: ")
    counts = len(dataset.examples), sum(len(reading.questions) for reading in dataset.examples)
    assert counts == KNOWN[name, split]
    assert {len(q.answers) for r in dataset.examples for q in r.questions} == {4} or name != "squality"
    assert {len(q.options) for r in dataset.examples for q in r.questions} == ({4} if name == "quality" else {0})


def test_a_meeting_has_a_line_for_each_turn_and_both_kinds_of_queries(data: Path) -> None:
    reading = readings("qmsum/test", data)[0]
    assert reading.context == "Person 0:\nPerson 1: It is said 1.\nPerson 0: It is said 2.\nPerson 1: It is said 3."
    assert [question.details["kind"] for question in reading.questions] == ["general", "specific", "specific"]


def test_the_best_of_several_references_counts(data: Path) -> None:
    question = readings("squality/test", data)[0].questions[0]
    assert question.details["kind"] == "plot"
    scores = registry.task("squality").protocol("test").scores  # type: ignore[attr-defined]
    assert list(scores) == ["rouge_1", "rouge_2", "rouge_l"]
    assert all(score(question.answers[2], question) == 1 for score in scores.values())
    assert all(score("nothing like that", question) == 0 for score in scores.values())


def test_options_lose_their_letters_and_the_answer_is_told_by_its_letter(data: Path) -> None:
    questions = readings("quality/leval", data)[0].questions
    assert {question.options for question in questions} == {("It rained.", "It snowed.", "The sun\n shone.")}
    assert [question.text for question in questions] == [f"What happened on day {n}?" for n in range(3)]
    assert [question.answers[0] for question in questions] == list(questions[0].options)


def test_open_questions_state_the_length_of_the_reference(data: Path) -> None:
    question = readings("leval/natural_question", data)[0].questions[1]
    assert question.text == "What happened on day 1? (about 4 words)"
    assert leval.mean_rouge("It rained 1 times.", question) == pytest.approx(1)
    assert leval.mean_rouge("It rained", question) == pytest.approx(
        (qa.rouge("rouge1", "It rained", question.answers) * qa.rouge("rouge2", "It rained", question.answers)
         * qa.rouge("rougeL", "It rained", question.answers)) ** (1 / 3)
    )  # fmt: skip


@given(st.integers(1, 300), st.integers(0, 5))
def test_generated_cases_hold_their_line_once(lines: int, seed: int) -> None:
    for reading in LongEval(LongEvalConfig(lines=lines, cases=2, seed=seed)).load("lines", None).examples:
        (question,) = reading.questions
        assert reading.context.count("\nline ") == lines
        name = question.text.partition("in line ")[2].partition("?")[0]
        line = f"line {name}: REGISTER_CONTENT is <{question.answers[0]}>\n"
        assert reading.context.count(f"line {name}:") == reading.context.count(line) == 1
        assert reading.context[question.place :].startswith(line)


def test_more_lines_than_there_are_names_are_refused() -> None:
    with pytest.raises(UserError, match=r"^longeval has names for 6,080 lines: lower lines=6081\.$"):
        LongEval(LongEvalConfig(lines=6081)).load("lines", None)


def test_generated_cases_are_in_upstreams_layout(shared: Path) -> None:
    real = readings("longeval/lines-200", shared / "data")[0]
    document = LongEval(LongEvalConfig(lines=200, cases=1)).load("lines", None).examples[0]
    assert real.context.startswith(longeval.HEAD)
    assert document.context.startswith(longeval.HEAD)
    assert [len(reading.context.splitlines()) - reading.context.endswith("\n\n") for reading in (real, document)] == [
        202,
        202,
    ]
    name = real.questions[0].text.partition("in line ")[2].partition("?")[0]
    assert real.questions[0].text == longeval.QUESTION.format(name=name)


@pytest.mark.parametrize(
    ("text", "score"), [("It is 21.", 1), ("<21>", 1), ("3 and 21", 1), ("21 and 3", 0), ("", 0), ("2 1", 0)]
)
def test_the_last_number_counts(text: str, score: float) -> None:
    assert longeval.last_number(text, Question("1", "?", ("21",))) == score


def test_every_dialogue_is_the_first_of_a_case(data: Path) -> None:
    cases = readings("longeval/topics(topics=3)", data)
    for number, case in enumerate(cases):
        order = [int(line.removeprefix("USER: Of ").strip(" .")) for line in case.context.split("\n") if "USER" in line]
        assert order == [(number + turn) % 7 for turn in range(3)]
        assert case.questions[0].answers == (f"The art of {number}",)
    with pytest.raises(UserError, match=r"has 7 dialogues here: lower topics=8\."):
        readings("longeval/topics(topics=8)", data)


@pytest.mark.parametrize("split", MultiDoc.splits)
def test_one_passage_answers_and_stands_at_every_position(split: str, shared: Path) -> None:
    task = MultiDoc(MultiDocConfig(samples=4))
    examples = task.load(split, shared / "data").examples
    count, places = int(split), multidoc.positions(int(split))
    assert places == {"10": [0, 4, 9], "20": [0, 4, 9, 14, 19], "30": [0, 4, 9, 14, 19, 24, 29]}[split]
    assert len(examples) == 4 * len(places)
    for example in examples:
        (question,) = example.questions
        passages = example.context.split("\nDocument [")
        assert len(passages) == count
        holding = [n for n, text in enumerate(passages) if multidoc.answers(text.partition("]")[2], question)]
        assert holding == [question.details["position"]]
    same = {
        tuple(sorted(text.partition("]")[2] for text in f"\n{reading.context}".split("\nDocument [")))
        for reading in examples[: len(places)]
    }
    assert len(same) == 1


def test_too_few_passages_are_refused(data: Path) -> None:
    assert len(readings("multidoc/10", data)) == 45
    with pytest.raises(
        UserError, match=r"^multidoc has 14 other passages here for a question: choose a smaller split\.$"
    ):
        readings("multidoc/20", data)


@pytest.mark.parametrize(("text", "score"), [("It was THE 12x!", 1), ("12", 0), ("", 0)])
def test_any_answer_in_the_text_counts(text: str, score: float) -> None:
    assert multidoc.holds_answer(text, Question("1", "?", ("the 12x", "twelve"))) == score


@pytest.mark.parametrize(
    ("task", "metric"),
    [
        ("qmsum(max_new_tokens=4)", "rouge_1"),
        ("squality(max_new_tokens=4)", "rouge_1"),
        ("quality", "accuracy"),
        ("leval(max_new_tokens=4)", "f1"),
        ("longeval/lines-200", "accuracy"),
        ("multidoc(samples=1)", "accuracy"),
    ],
)
def test_bench_runs_it(task: str, metric: str, data: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"backbone": "tiny-llama", "data": data, "limit": 1, "progress": False}
    (run,) = contextlab.bench("sliding", task, out=tmp_path, **options).runs
    assert next(iter(run.metrics)) == metric
