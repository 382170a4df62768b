from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import upstream_files as upstream

import contextlab
from contextlab.backbone import load
from contextlab.benchmarks.data import babi
from contextlab.benchmarks.examples import Question, Reading
from contextlab.benchmarks.metrics.intervals import jackknife
from contextlab.benchmarks.prompts import published
from contextlab.benchmarks.task import Dataset
from contextlab.benchmarks.tasks import babilong
from contextlab.benchmarks.tasks.babilong import BABILong, BABILongConfig, accuracy, template
from contextlab.errors import UserError

CLOSING = "\n</context>\n\nQuestion: "


pytestmark = pytest.mark.usefixtures("no_data")


@functools.cache
def backbone() -> Any:
    return load("tiny-llama", device="cpu")


def loaded(split: str = "qa1", data: Path | None = None, **settings: Any) -> Dataset:
    return BABILong(BABILongConfig(**settings)).load(split, data)


def task_of(reading: Reading) -> str:
    return str(reading.questions[0].details["stratum"])


def facts_of(task: str, data: Path | None = None) -> dict[str, tuple[str, ...]]:
    path = None if data is None else data / "babi" / babi.path_of(task)
    questions = (
        babi.sample(task, babilong.SAMPLE_QUESTIONS, babilong.SAMPLE_SEED) if path is None else babi.parsed(path)
    )
    return {f"{task}/{question.id}": question.facts for question in questions}


@pytest.mark.parametrize("task", babi.FILES)
@pytest.mark.parametrize("tokens", [1400, 2900])
def test_a_prompt_has_the_wanted_tokens_of_the_backbone(task: str, tokens: int) -> None:
    sized = BABILong(BABILongConfig(tokens=tokens + 800, samples=2)).on(backbone())
    protocol = sized.protocol(task)
    for reading in sized.load(task, None).examples:
        text = protocol.whole(reading, reading.questions[0])  # type: ignore[attr-defined]
        assert tokens + 800 - len(backbone().encode(text)) in (0, 1)


def test_facts_stand_in_their_order_between_sentences_of_noise() -> None:
    known = facts_of("qa2")
    for reading in loaded("qa2", tokens=900, samples=30).examples:
        facts = known[reading.id]
        places = []
        for fact in facts:
            places.append(reading.context.index(fact, places[-1] + 1 if places else 0))
        assert len(places) == len(facts)
        noise = reading.context
        for fact in facts:
            noise = noise.replace(fact, "", 1)
        assert len(noise.split()) > 300
    depths = [reading.context.index(known[reading.id][0]) for reading in loaded("qa2").examples]
    assert max(depths) > 10 * min(depths)


def test_without_tokens_the_facts_stand_alone() -> None:
    known = facts_of("qa3")
    readings = loaded("qa3", tokens=0).examples
    assert len(readings) == 100
    assert all(reading.context == " ".join(known[reading.id]) for reading in readings)


def test_questions_whose_facts_would_fill_the_text_are_left_out() -> None:
    known = facts_of("qa2")
    before, after = template("qa2")
    prompt = BABILong().count(before) + BABILong().count(after.format(text="Where is the football?"))
    kept = {reading.id for reading in loaded("qa2", tokens=prompt + 64, samples=200).examples}
    # A fact has fewer than the eight tokens that are planned for it, and the things have equally long names.
    assert {len(known[name]) for name in kept} == {*range(2, 9)}
    assert {len(facts) for name, facts in known.items() if name not in kept} == {9, 10, 11, 12, 13, 14}
    with pytest.raises(UserError, match="No question of qa2 fits into tokens=100: raise tokens"):
        loaded("qa2", tokens=100)


def test_the_same_seed_is_the_same_text_and_another_is_not() -> None:
    first, second, other = (loaded(samples=5, seed=seed).examples for seed in (1, 1, 2))
    assert first == second != other
    assert [loaded(samples=n).examples[0] for n in (1, 5)] == [loaded(samples=5).examples[0]] * 2


def test_the_prompt_is_the_published_one_with_the_question_last() -> None:
    suite = published("babilong")
    for task in babi.FILES:
        before, after = template(task)
        prompt = before + "FACTS" + after.format(text="Who?")
        expected = suite["template"].replace("{context}", "FACTS").replace("{question}", "Who?")
        for name, text in suite["prompts"][task].items():
            expected = expected.replace(f"{{{name}}}", text)
        assert prompt == expected
        assert prompt.endswith(f"FACTS{CLOSING}Who?")
        reading = loaded(task, tokens=0, samples=1).examples[0]
        protocol = BABILong(BABILongConfig(tokens=0)).protocol(task)
        assert protocol.whole(reading, reading.questions[0]).startswith(before)  # type: ignore[attr-defined]
        assert protocol.alone == expected.replace("<context>\nFACTS\n</context>\n\n", "").replace("Who?", "{text}")  # type: ignore[attr-defined]


def test_the_prompts_are_those_of_the_data_folder(shared: Path) -> None:
    upstream_suite = json.loads((shared / "data/suite_templates/babilong.json").read_text())
    suite = published("babilong")
    assert suite["template"] == upstream_suite["default_template"]
    for task in babi.FILES:
        assert suite["prompts"][task] == upstream_suite["prompts"][task]
        assert suite["labels"][task] == upstream_suite["task_labels"][task]


def question_of(task: str, answer: str, text: str = "Where is Mary?") -> Question:
    return Question("q", text, (answer,), tuple(published("babilong")["labels"][task]))


@pytest.mark.parametrize(
    ("task", "answer", "question", "written", "score"),
    [
        (
            "qa1",
            "garden",
            "Where is Mary?",
            "\nAnswer: The most recent location of Mary is the GARDEN. Not the office.",
            1,
        ),
        ("qa1", "garden", "Where is Mary?", "garden or office", 0),
        ("qa1", "garden", "Where is Mary?", "She left. garden", 0),
        ("qa1", "garden", "Where is Mary?", "garden <example> office", 1),
        ("qa1", "garden", "Where is Mary?", "garden <context> office", 1),
        ("qa1", "garden", "Where is Mary?", "garden Question: where is the office?", 0),
        ("qa1", "garden", "Where is Mary?", "gardener", 1),
        ("qa1", "garden", "Where is Mary?", "", 0),
        ("qa3", "garden", "Where was the apple before the office?", "Before the office it was in the garden.", 1),
        ("qa5", "Bill", "Who gave the apple to Fred?", "Bill gave the apple to Fred", 1),
        ("qa5", "Bill", "Who gave the apple to Fred?", "Bill or Jeff", 0),
        ("qa8", "apple,milk", "What is Mary carrying?", "milk and apple", 1),
        ("qa8", "apple,milk", "What is Mary carrying?", "apple", 0),
        ("qa8", "apple", "What is Mary carrying?", "apple, milk", 0),
        ("qa7", "none", "How many objects is Mary carrying?", "none", 0),
        ("qa7", "one", "How many objects is Mary carrying?", "one", 1),
        ("qa10", "maybe", "Is Mary in the park?", "Maybe", 1),
        ("qa10", "yes", "Is Mary in the park?", "yes, who knows", 0),
    ],
)
def test_an_answer_is_right_by_upstreams_rule(task: str, answer: str, question: str, written: str, score: int) -> None:
    assert accuracy(written, question_of(task, answer, question)) == score


@pytest.mark.parametrize(("written", "score"), [("none", 1), ("one", 0), ("", 0), ("none or one", 0)])
def test_with_whole_words_none_is_not_one(written: str, score: int) -> None:
    assert accuracy(written, question_of("qa7", "none"), words=True) == score


def test_all_is_the_mean_over_five_tasks_asked_in_their_own_words() -> None:
    readings = loaded("all", tokens=0, samples=3).examples
    assert [task_of(reading) for reading in readings[:5]] == ["qa1", "qa2", "qa3", "qa4", "qa5"]
    assert len(readings) == 15
    protocol = BABILong().protocol("all")
    scores = {"qa1": [1.0, 1.0, 1.0, 0.0], "qa2": [0.0], "qa3": [1.0], "qa4": [0.0], "qa5": [0.0]}
    records = [
        {
            "id": f"{task}/{n}",
            "work": f"{task}/{n}",
            "questions": [{"stratum": task, "accuracy": s, "accuracy_words": s}],
        }
        for task, values in scores.items()
        for n, s in enumerate(values)
    ]
    metrics = protocol.summarise(records)
    assert metrics["accuracy"].value == pytest.approx(1.75 / 5)
    assert metrics["accuracy_qa1"].value == 0.75
    assert metrics["accuracy"].n == 8
    parts = [part for record in records for part in protocol.parts(record)["accuracy"]]
    assert jackknife(parts).value == metrics["accuracy"].value
    assert protocol.quality(records[0]) == 1.0


def data_folder(root: Path) -> Path:
    upstream.put(root / "babi" / babi.path_of("qa1"), upstream.BABI.encode())
    upstream.put(root / "pg19/test/1.txt", b"It was a dark evening, and the rain fell on the old roof. " * 20)
    return root


def test_the_data_is_named(tmp_path: Path) -> None:
    root = data_folder(tmp_path / "data")
    dataset = loaded(data=root)
    assert dataset.source == "local"
    unverified = "your own data in the layout of bAbI, not verified against the publisher: 3 questions"
    assert dataset.note == f"{unverified}, in sentences of 1 book of pg19"
    assert loaded().note == (
        "generated questions in the manner of bAbI, not bAbI's, in sentences of generated stories: 100 questions"
    )
    assert loaded(data=root, tokens=0).note.endswith("3 questions, without noise")
    assert loaded(data=root, noise="stories").note.endswith("generated stories")
    with pytest.raises(UserError, match=r"no file .*qa2_two-supporting-facts_test\.txt"):
        loaded("all", root)


def test_changed_books_or_facts_are_another_file(tmp_path: Path) -> None:
    root = data_folder(tmp_path / "data")
    first = loaded(data=root)
    upstream.put(root / "pg19/test/1.txt", b"It was a bright evening, and the sun shone on the old roof. " * 20)
    assert "bright" in loaded(data=root).examples[0].context
    upstream.put(root / "babi" / babi.path_of("qa1"), upstream.BABI.replace("Mary", "Anna").encode())
    assert any("Anna" in reading.context for reading in loaded(data=root).examples)
    assert all("Anna" not in reading.context for reading in first.examples)


def test_questions_of_babilongs_sets_come_first(tmp_path: Path) -> None:
    root = data_folder(tmp_path / "data")
    for number in range(3):
        upstream.put(root / "babi" / babilong.CHOSEN, f'{{"qa1": {{"here": [{number}]}}}}'.encode())
        assert loaded(data=root, tokens=0, samples=1).examples[0].id == f"qa1/{number}"
        assert {reading.id for reading in loaded(data=root, tokens=0).examples} == {"qa1/0", "qa1/1", "qa1/2"}
    for broken in ('{"qa1": {"here": ["x"]}}', '{"qa1": []}', "[]", '{"qa1": {"here": [-1]}}'):
        upstream.put(root / "babi" / babilong.CHOSEN, broken.encode())
        with pytest.raises(UserError, match=babilong.CHOSEN):
            loaded(data=root)


def test_the_local_data_is_babis_in_books(shared: Path) -> None:
    data = shared / "data"
    dataset = loaded("all", data, samples=60, tokens=2048)
    assert (
        dataset.note
        == "re-laid: facts of bAbI in sentences of 2 books of pg19, not BABILong's own texts: 300 questions"
    )
    listed = (data / "babi" / babilong.CHOSEN).read_text()
    numbers = [int(number) for number in re.findall(r"\d+", listed.partition('"here"')[2].partition("]")[0])]
    first = [int(reading.id.partition("/")[2]) for reading in dataset.examples if reading.id.startswith("qa1/")]
    assert first[: len(numbers)] == numbers
    assert len(numbers) == 49


def test_a_run_reads_the_context_before_the_question(tmp_path: Path) -> None:
    task = f"{babilong.__file__}:BABILong"
    results = contextlab.bench(
        "window", f"{task}/all(tokens=2600,samples=1)", backbone="tiny-llama", limit=2, out=tmp_path, progress=False
    )
    (run,) = results.runs
    assert run.cost.contextualize is not None
    assert run.cost.query is not None
    (path,) = tmp_path.glob("*/examples.jsonl")
    for line in path.read_text().splitlines():
        record = json.loads(line)["record"]
        (question,) = record["questions"]
        length = len(backbone().encode(f"{CLOSING}{asked_text(record['id'])}"))
        assert record["context_tokens"] + length in (2599, 2600)
        assert question["stratum"] == record["id"].partition("/")[0]


def asked_text(identity: str) -> str:
    readings = BABILong(BABILongConfig(tokens=2600, samples=1)).on(backbone()).load("all", None).examples
    return next(reading.questions[0].text for reading in readings if reading.id == identity)
