from __future__ import annotations

import re
from pathlib import Path

import pytest
import upstream_files as upstream

from contextlab.benchmarks.data import babi
from contextlab.benchmarks.data.babi import ASK, FILES, OPPOSITE, BabiQuestion
from contextlab.benchmarks.prompts import published
from contextlab.errors import UserError

MOVE = re.compile(r"(\w+) (?:went|walked) to the (\w+)\.")


def test_a_question_has_all_facts_of_its_story_before_it(tmp_path: Path) -> None:
    path = tmp_path / "qa1_test.txt"
    path.write_text(upstream.BABI)
    kitchen, office, hallway = babi.parsed(path)
    facts = ("Mary went to the kitchen.", "John went to the garden.", "Mary went to the office.")
    assert kitchen == BabiQuestion(0, 0, facts[:2], "Where is Mary?", "kitchen")
    assert office == BabiQuestion(1, 0, facts, "Where is Mary?", "office")
    assert hallway == BabiQuestion(2, 1, ("John went to the hallway.",), "Where is John?", "hallway")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no questions"),
        ("1 Mary went away.\n", "holds no questions"),
        ("2 Mary went away.\n", "Line 1 of"),
        ("1 Mary went away.\nx Where is Mary?\tout\t1\n", "Line 2 of"),
        ("1 Mary went away.\n2 Where is Mary?\t \t1\n", "Line 2 of"),
        ("1\n", "Line 1 of"),
    ],
)
def test_a_broken_file_is_named(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "qa1.txt").write_text(text)
    with pytest.raises(UserError, match=message) as error:
        babi.parsed(tmp_path / "qa1.txt")
    assert str(tmp_path) in str(error.value)


@pytest.mark.parametrize("task", FILES)
def test_generated_answers_are_labels_that_the_question_does_not_name(task: str) -> None:
    labels = set(published("babilong")["labels"][task])
    questions = babi.sample(task, 60, 1)
    assert questions == babi.sample(task, 60, 1) != babi.sample(task, 60, 2)
    answers = {question.answer for question in questions}
    assert {member for answer in answers for member in answer.split(",")} <= labels
    assert len(answers) > 1
    for question in questions:
        named = {label for label in labels if label.lower() in question.text.lower()}
        assert named.isdisjoint(question.answer.split(","))


def last_place(facts: tuple[str, ...], name: str) -> str:
    return [match[2] for fact in facts if (match := MOVE.match(fact)) and match[1] == name][-1]


def test_generated_answers_follow_from_the_facts() -> None:
    for question in babi.sample("qa1", 50, 3):
        name = re.findall(r"Where is (\w+)", question.text)[0]
        assert last_place(question.facts, name) == question.answer
    for question in babi.sample("qa2", 50, 3):
        (name,) = (fact.split()[0] for fact in question.facts if " took the " in fact)
        assert last_place(question.facts, name) == question.answer
    for question in babi.sample("qa3", 50, 3):
        (name,) = (fact.split()[0] for fact in question.facts if " took the " in fact)
        later = re.findall(r"before the (\w+)", question.text)[0]
        assert question.facts[-1].endswith(f"{later}.")
        assert last_place(question.facts[:-1], name) == question.answer
    for question in babi.sample("qa7", 50, 3):
        kept = sum(" took " in fact for fact in question.facts) - sum(" put down " in fact for fact in question.facts)
        assert babi.NUMBERS[kept] == question.answer


def test_generated_directions_are_those_that_were_said() -> None:
    for question in babi.sample("qa4", 50, 3):
        triples = {re.match(r"The (\w+) is (\w+) of the (\w+)\.", fact).groups() for fact in question.facts}  # type: ignore[union-attr]
        if match := re.match(r"What is (\w+) of the (\w+)\?", question.text):
            assert (question.answer, match[1], match[2]) in triples
        else:
            middle, way = re.findall(r"What is the (\w+) (\w+) of\?", question.text)[0]
            assert (question.answer, OPPOSITE[way], middle) in triples


def test_every_task_has_a_file_labels_and_a_way_to_ask() -> None:
    suite = published("babilong")
    assert list(FILES) == list(ASK) == list(suite["labels"]) == list(suite["prompts"])


def test_the_local_files_are_read_as_described(shared: Path) -> None:
    for task in FILES:
        questions = babi.parsed(shared / "data/babi" / babi.path_of(task))
        assert len(questions) == 500
        assert questions[-1].story + 1 == (500 if task == "qa4" else 100)
        labels = set(published("babilong")["labels"][task])
        assert {member for question in questions for member in question.answer.split(",")} <= labels
        assert all(question.facts and question.text.endswith("?") for question in questions)
