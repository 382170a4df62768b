"""The tables of other suites, and their records as contexts and questions."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import suite_files
from hypothesis import given
from hypothesis import strategies as st

from contextlab.benchmarks.data.suite_records import READERS
from contextlab.benchmarks.data.suites import SuiteTask, readings, sample, suite
from contextlab.benchmarks.metrics.suites import SCORES
from contextlab.errors import UserError

NAMES = ("longbench", "longbench-v2", "infinitebench", "longmemeval", "helmet", "loft")
TASKS = [task for name in NAMES for task in suite(name).tasks.values()]


def loaded(name: str, task: str, root: Path, length: str = "") -> list[Any]:
    entry = suite(name).tasks[task]
    return list(readings(entry, [root / name / file for file in entry.files(length)]))


def whole(reading: Any, number: int = 0) -> str:
    """The prompt as upstream writes it: all that is read, and one question."""
    return str(reading.context + reading.questions[number].text)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return suite_files.write(tmp_path_factory.mktemp("data"))


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_every_task_has_one_context_a_metric_and_a_reader(task: SuiteTask) -> None:
    assert task.prompt.count("{context}") == 1
    assert task.metric in SCORES
    assert task.reader in READERS
    assert task.new_tokens > 0
    assert all(reading.questions for reading in sample(task))
    lengths = task.lengths or [""]
    assert all("{" not in file for length in lengths for file in task.files(length))


@given(st.text("a {}\n"), st.text("a {}\n", min_size=1), st.text("b{} "))
def test_the_parts_of_a_prompt_are_the_whole_prompt(head: str, context: str, ending: str) -> None:
    head, tail = head.replace("{", "("), "\n\nQ: {question}"
    task = SuiteTask("t", "", "", "", head + "{context}" + tail, 1, "f1")
    read, question = task.worded({"context": context, "question": ending})
    assert read + question == head + context + tail.replace("{question}", ending)
    assert question == question.lstrip()


def test_longbench_prompts_and_tokens_are_upstreams(shared: Path) -> None:
    published = json.loads((shared / "data/suite_templates/longbench_v1.json").read_text("utf-8"))
    tasks = suite("longbench").tasks
    ours = {name: task for name, task in tasks.items() if not name.endswith("_e")}
    assert {name: task.prompt for name, task in ours.items()} == published["prompt"]
    assert {name: task.new_tokens for name, task in ours.items()} == published["max_new_tokens"]
    assert all(
        task.prompt.find("{input}") > task.prompt.find("{context}")
        for task in ours.values()
        if "{input}" in task.prompt
    )


def test_longbench_records_become_readings_with_their_questions(root: Path) -> None:
    first, second = loaded("longbench", "hotpotqa", root)
    prompt = suite("longbench").tasks["hotpotqa"].prompt
    for number, reading in ((0, first), (2, second)):
        record = suite_files.longbench("hotpotqa", number)
        expected = prompt.replace("{context}", record["context"]).replace("{input}", record["input"])
        assert whole(reading) == expected
        assert reading.questions[0].answers == tuple(record["answers"])
        assert reading.questions[0].details["record_id"] == record["_id"]
    assert [len(reading.questions) for reading in (first, second)] == [2, 2]
    assert [q.details["length"] for r in (first, second) for q in r.questions] == ["0-4k", "4-8k", "8k+", "8k+"]
    assert loaded("longbench", "trec", root)[0].questions[0].options == tuple(suite_files.CLASSES)
    assert loaded("longbench", "gov_report", root)[0].questions[0].text.startswith("Now, write a one-page summary")


def test_longbench_v2_is_its_prompt_file_with_stripped_parts(root: Path) -> None:
    reading = loaded("longbench-v2", "all", root)[1]
    assert whole(reading).startswith(
        "Please read the following text and answer the question below.\n\n<text>\nA report 1."
    )
    assert "question: Which is right in 1?\nChoices:\n(A) option A of 1\n(B) option B of 1\n" in whole(reading)
    assert whole(reading).endswith('"The correct answer is (insert answer here)".')
    assert reading.questions[0].answers == ("B",)
    assert reading.questions[0].details["difficulty"] == "hard"


@pytest.mark.parametrize("task", ["longbook_choice_eng", "code_debug", "code_run", "math_find", "longdialogue_qa_eng"])
def test_infinitebench_prompts_are_lm_evals(task: str, root: Path) -> None:
    utils = pytest.importorskip("lm_eval.tasks.infinitebench.utils")
    functions = {
        "longbook_choice_eng": utils.doc_to_text_longbook_choice,
        "longdialogue_qa_eng": utils.doc_to_text_longdialogue,
    }
    function = functions.get(task) or getattr(utils, f"doc_to_text_{task}")
    prompts = {
        whole(reading, n) for reading in loaded("infinitebench", task, root) for n in range(len(reading.questions))
    }
    assert prompts == {function(suite_files.infinitebench(task, number)) for number in range(4)}


def test_infinitebench_answers_are_texts_and_of_choices_also_letters(root: Path) -> None:
    def answers(task: str) -> tuple[str, ...]:
        return tuple(loaded("infinitebench", task, root)[0].questions[0].answers)

    assert answers("longbook_choice_eng") == answers("code_debug") == ("answer 0 c", "C")
    assert (answers("math_find"), answers("code_run"), answers("passkey")) == (("38",), ("-7",), ("71432",))
    assert answers("longdialogue_qa_eng") == ("JOHN", "JOHNNY")
    assert len(loaded("infinitebench", "passkey", root)) == 2


def test_longmemeval_sessions_come_by_date_without_the_marks_of_evidence(root: Path) -> None:
    (reading,) = loaded("longmemeval", "s", root)
    assert [q.details["ability"] for q in reading.questions] == [
        *("information-extraction", "multi-session", "temporal-reasoning", "abstention")
    ]
    assert re.findall(r"Session Date: (\S+)", reading.context) == ["2023/04/20", "2023/05/20", "2023/05/29"]
    assert re.findall(r"dog, session (\d)", reading.context) == ["2", "0", "1"]
    assert "\n\nuser: I have a dog, session 2.\n\nassistant: Good.\n" in reading.context
    assert "has_answer" not in reading.context
    assert reading.questions[2].answers == ("3",)
    assert whole(reading).endswith(
        "\n\nCurrent Date: 2023/05/30 (Tue) 23:40\nQuestion: How many dogs do I have?\nAnswer:"
    )


def test_helmet_shows_two_other_questions_before_the_passages(root: Path) -> None:
    readings = loaded("helmet", "nq", root, "8k")
    assert [q.details["cluster"] for r in readings for q in r.questions] == ["who q 0", "who q 0", "who q 1", "who q 1"]
    text = whole(readings[0])
    shown = re.findall(r"Question: (who shown \d)\nAnswer: (Ann \d)\n\n", text)
    assert len(set(shown)) == 2
    assert text.endswith("Document (Title: T2): text 2 0\n\nQuestion: who q 0\nAnswer:")
    assert re.findall(r"Question: (who shown \d)", whole(readings[1])) == [question for question, _ in shown]


def test_helmet_takes_a_hundred_questions_with_all_their_records(root: Path) -> None:
    task = suite("helmet").tasks["nq"]
    few = SuiteTask(**{**vars(task), "most": 1})
    paths = [root / "helmet" / file for file in task.files("8k")]
    assert task.most == 100
    assert {q.details["cluster"] for r in readings(few, paths) for q in r.questions} == {"who q 0"}


def test_helmet_json_ends_with_the_key(root: Path) -> None:
    (reading,) = loaded("helmet", "json_kv", root, "8k")
    assert whole(reading).endswith(
        "\n\nKey: k1\nCorresponding value: v1\n\nKey: k2\nCorresponding value: v2\n\nKey: k0\nCorresponding value:"
    )
    assert [q.answers for q in reading.questions] == [("v0",), ("v1",), ("v2",), ("v3",)]


def test_a_loft_collection_is_one_reading_with_numbers_for_names(root: Path) -> None:
    (reading,) = loaded("loft", "retrieval-nq", root, "32k")
    assert "\nID: 0 | TITLE: None | CONTENT: Passage 0. | END ID: 0\nID: 1 | TITLE: Title 1 |" in reading.context
    example = reading.context.partition("====== Example 1 ======\n")[2]
    assert "query: who owns 1\n" in example
    assert "TITLE: Title 1 | ID: 1\nTITLE: Title 3 | ID: 3\nFinal Answer: ['1', '3']\n" in example
    assert [q.answers for q in reading.questions] == [("0", "3"), ("1", "3"), ("2", "3"), ("3", "3")]
    assert whole(reading, 2).count("====== Now let's start! ======\n") == 1
    (answered,) = loaded("loft", "rag-nq", root, "32k")
    assert answered.questions[0].answers == ("Spain", "Taíno")
    assert "Final Answer: ['Spain', 'Taíno']\n" in answered.context


@pytest.mark.parametrize(
    ("name", "task", "change", "message"),
    [
        ("longbench", "hotpotqa", {"answers": []}, "'answers' is an empty list"),
        ("longbench", "hotpotqa", {"input": " "}, "'input' holds no text"),
        ("longbench", "hotpotqa", {"length": "long"}, "'length' holds no number"),
        ("longbench", "trec", {"all_classes": None}, "'all_classes' holds no classes"),
        ("infinitebench", "math_find", {"input": "Which?"}, "'input' does not say which number"),
        ("infinitebench", "code_run", {"input": "f(1)"}, "'input' holds no call"),
        ("infinitebench", "code_debug", {"options": ["a", "b"]}, "'options' holds no four texts"),
        ("infinitebench", "passkey", {"context": "\ud800"}, "'context' holds no text"),
        ("helmet", "json_kv", {"demos": [["k"]]}, "'demos' holds no list of keys"),
        ("helmet", "nq", {"ctxs": []}, "'ctxs' holds no list of objects"),
        ("loft", "retrieval-nq", {"answers": [["doc9", 1]]}, "'answers' names texts that are not in corpus"),
    ],
)
def test_the_broken_field_is_named(name: str, task: str, change: dict[str, Any], message: str, tmp_path: Path) -> None:
    root = suite_files.write(tmp_path)
    length = {"helmet": "8k", "loft": "32k"}.get(name, "")
    path = root / name / suite(name).tasks[task].files(length)[0]
    first, second, *rest = path.read_text("utf-8").splitlines()
    path.write_text("\n".join([first, json.dumps(json.loads(second) | change), *rest]))
    with pytest.raises(UserError, match=rf"^Line 2 of .*{path.name}: field {re.escape(message)}"):
        loaded(name, task, root, length)


def test_other_letters_and_sessions_without_dates_are_refused(tmp_path: Path) -> None:
    root = suite_files.write(tmp_path)
    path = root / "longbench-v2/data.json"
    path.write_text(json.dumps([suite_files.longbench_v2(0) | {"answer": "E"}]))
    with pytest.raises(UserError, match=r"^Record 1 of .*'answer' is none of the letters"):
        loaded("longbench-v2", "all", root)
    path = root / "longmemeval/longmemeval_oracle.json"
    path.write_text(json.dumps([suite_files.longmemeval(0) | {"haystack_dates": ["2023"]}]))
    with pytest.raises(UserError, match="'haystack_sessions' holds not as many sessions"):
        loaded("longmemeval", "oracle", root)
