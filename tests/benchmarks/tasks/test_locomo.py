from __future__ import annotations

import json
import math
import re
import string
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import upstream_files
from hypothesis import given, settings
from hypothesis import strategies as st
from nltk.stem import PorterStemmer

from contextlab.benchmarks.examples import Question
from contextlab.benchmarks.tasks.locomo import CATEGORIES, REFUSALS, LoCoMo, f1, stemmed_f1
from contextlab.errors import UserError

STEMMER = PorterStemmer()
WORDS = st.lists(st.sampled_from(["hiking", "hikes", "the", "and", "dog", "Dogs,", "a", "-", "2022", ";", ","]))
TEXTS = WORDS.map(" ".join)


def question(category: str, answer: str) -> Question:
    return Question("q", "?", (answer,), details={"category": category})


def plain(prediction: str, answer: str) -> float:
    """F1 of stems by precision and recall, written down from the definition."""
    stem = STEMMER.stem

    def stems(text: str) -> Counter[str]:
        bare = "".join(letter for letter in text.lower() if letter not in string.punctuation)
        return Counter(stem(word) for word in re.sub(r"\b(a|an|the|and)\b", " ", bare).split())

    words, answer_words = stems(prediction), stems(answer)
    same = sum((words & answer_words).values())
    if not same:
        return 0.0
    precision, recall = same / sum(words.values()), same / sum(answer_words.values())
    return 2 * precision * recall / (precision + recall)


@settings(deadline=None)
@given(TEXTS, TEXTS)
def test_stems_are_compared(prediction: str, answer: str) -> None:
    assert math.isclose(stemmed_f1(prediction, answer), plain(prediction, answer))


@pytest.mark.parametrize(
    ("category", "answer", "text", "value"),
    [
        ("single-hop", "hiking and camping", "camping, hikes", 1.0),
        ("temporal", "May 2022; June", "May 2022", 0.8),
        ("open-domain", "yes; she likes dogs", "Yes", 1.0),
        ("open-domain", "yes; no", "no", 0.0),
        ("multi-hop", "pottery, camping, painting", "painting, pottery", 2 / 3),
        ("multi-hop", "pottery, red dogs", "dog", 0.5 * 2 / 3),
        ("adversarial", REFUSALS[0], "That is not mentioned.", 1.0),
        ("adversarial", REFUSALS[0], "mentioned", 0.0),
    ],
)
def test_every_category_is_compared_as_upstream_does(category: str, answer: str, text: str, value: float) -> None:
    assert f1(text, question(category, answer)) == pytest.approx(value)


@settings(deadline=None)
@given(st.sampled_from(sorted(CATEGORIES.values())), TEXTS, TEXTS)
def test_f1_lies_between_0_and_1_and_a_list_is_the_mean_of_its_parts(category: str, text: str, answer: str) -> None:
    value = f1(text, question(category, answer))
    assert 0 <= value <= 1
    if category == "multi-hop":
        parts = [max(plain(candidate, part) for candidate in text.split(",")) for part in answer.split(",")]
        assert value == pytest.approx(sum(parts) / len(parts))


def test_the_first_measure_is_upstreams_and_squads_is_the_second() -> None:
    protocol: Any = LoCoMo().protocol("all")
    assert protocol.measures == ("f1", "f1_squad", "exact_match")
    entry = protocol.compare("dogs", question("single-hop", "the dog"))
    assert (entry["f1"], entry["f1_squad"], entry["exact_match"]) == (1.0, 0.0, 0.0)


def finding(question: str, answer: str | int, kind: str, audited: str) -> dict[str, Any]:
    return {"question": question, "golden_answer": answer, "error_type": kind, "correct_answer": audited}


FINDINGS = [
    finding("Question 2?", "answer 2", "TEMPORAL_ERROR", "in May"),
    finding("Question 4?", "answer 4", "WRONG_CITATION", "answer 4 (with D1:2)"),
    finding("When?", 2022, "HALLUCINATION", "2021"),
    finding("Question 4?", "another answer", "AMBIGUOUS", "of another conversation"),
]


@pytest.fixture
def audited_data(tmp_path: Path) -> Path:
    upstream_files.write(tmp_path)
    (tmp_path / "locomo/errors.json").write_text(json.dumps(FINDINGS))
    return tmp_path


def locomo(errors: str) -> LoCoMo:
    return LoCoMo(LoCoMo.Config.parse({"errors": errors}))


def records(task: LoCoMo, data: Path, written: str) -> list[dict[str, Any]]:
    """Records in which every answer is the same text."""
    protocol: Any = task.protocol("all")
    return [
        {"work": reading.work, "questions": [{**q.details, **protocol.compare(written, q)} for q in reading.questions]}
        for reading in task.load("all", data).examples
    ]


def test_the_audit_is_a_second_score_and_the_first_stays_as_published(audited_data: Path) -> None:
    published = locomo("published").protocol("all").summarise(records(locomo("published"), audited_data, "in May"))
    for errors, value in (("left-out", 0.0), ("corrected", 1 / 6)):
        task = locomo(errors)
        metrics = task.protocol("all").summarise(records(task, audited_data, "in May"))
        assert metrics.pop("f1_audited").value == pytest.approx(value)
        assert metrics == published
    left_out = locomo("left-out").protocol("all").summarise(records(locomo("left-out"), audited_data, "answer 4"))
    assert left_out["f1_audited"].n == 8
    assert left_out["f1"].n == 12


def test_a_wrong_citation_leaves_the_answer_right(audited_data: Path) -> None:
    data = locomo("corrected").load("all", audited_data)
    audited = {question.text: question.details["audited"] for question in data.examples[0].questions}
    assert audited["Question 2?"] == "in May"
    assert audited["When?"] == "2021"
    assert audited["Question 4?"] is audited["Trick?"] is None
    assert data.note.endswith("; an audit finds the answers to 4 of 12 questions wrong")


def test_without_the_setting_nothing_changes(audited_data: Path) -> None:
    plain, audited = locomo("published"), locomo("left-out")
    assert (plain.spelled("all"), audited.spelled("all")) == ("all", "all(errors=left-out)")
    data = plain.load("all", audited_data)
    assert all("audited" not in question.details for reading in data.examples for question in reading.questions)
    assert plain.protocol("all").prompt == audited.protocol("all").prompt
    assert data.sha256 != audited.load("all", audited_data).sha256
    assert locomo("corrected").load("all", audited_data).examples[0].context == data.examples[0].context


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "There is no file .*errors.json: put the audit there"),
        ("[]", "holds no findings"),
        ("[3]", "Finding 1 of .* 'error_type'"),
        (json.dumps([FINDINGS[0] | {"correct_answer": ""}]), "Finding 1 of .* 'correct_answer'"),
        (json.dumps(FINDINGS[3:]), "names no question of the conversations"),
    ],
)
def test_a_missing_or_broken_audit_is_refused(content: str | None, message: str, audited_data: Path) -> None:
    path = audited_data / "locomo/errors.json"
    path.unlink()
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError, match=message):
        locomo("left-out").load("all", audited_data)


def test_the_audit_of_the_shared_conversations_finds_55_answers_wrong(shared: Path) -> None:
    for errors in ("left-out", "corrected"):
        note = locomo(errors).load("all", shared / "data").note
        assert note == (
            "real: 5 of 10 conversations of LoCoMo; an audit finds the answers to 55 of 1,020 questions wrong"
        )
