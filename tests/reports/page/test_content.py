from __future__ import annotations

import json
import math

from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from contextlab.reports.page.content import answers

values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
names = st.sampled_from(
    ["id", "questions", "answers", "prediction", "written", "nats", "answer", "segments", "accuracy", "x"]
)


def test_a_choice_is_one_item_with_the_nats_of_its_candidates() -> None:
    record: dict[str, JsonValue] = {
        "id": "a",
        "work": "w",
        "prediction": 1,
        "answer": 0,
        "correct": False,
        "nats": [2.123456, 1.0],
        "lengths": [3, 4],
    }
    content = answers(record | {"context_tokens": 90}, "accuracy")
    assert content["items"] == [{"id": "a", "said": 1, "right": 0, "score": 0.0, "nats": [2.1235, 1.0]}]
    assert content["facts"] == {"context_tokens": 90}


def test_questions_about_one_context_are_items() -> None:
    questions: list[JsonValue] = [
        {"id": "q1", "prediction": "Paris", "f1": 0.5, "exact_match": 0.0},
        {"id": "q2", "prediction": "", "f1": 0.0},
    ]
    content = answers({"id": "a", "work": "w", "context_tokens": 5, "questions": questions}, "f1")
    assert content["items"] == [{"id": "q1", "said": "Paris", "score": 0.5}, {"id": "q2", "said": "", "score": 0.0}]
    written = answers(
        {"id": "b", "answers": [{"id": "t", "answer": 1, "written": "negative", "correct": True}]}, "accuracy"
    )
    assert written["items"] == [{"id": "t", "said": "negative", "right": 1, "score": 1.0}]


def test_the_score_of_a_question_is_the_measure_of_its_run() -> None:
    record: dict[str, JsonValue] = {
        "id": "a",
        "questions": [{"id": "q", "prediction": "x", "f1": 0.0, "contains": 1.0}],
    }
    assert [answers(record, name)["items"][0]["score"] for name in ("contains", "f1", "accuracy")] == [1.0, 0.0, 0.0]


def test_a_text_has_its_nats_along_it() -> None:
    record = {"id": "a", "tokens": 2048, "nats": 6000.5, "segments": [3.00001, 2.9], "positions": {"0k": {"tokens": 1}}}
    assert answers(record, "nats_per_token") == {"segments": [3.0, 2.9], "facts": {"tokens": 2048, "nats": 6000.5}}


def test_numbers_inside_objects_are_rounded_and_finite() -> None:
    assert answers({"answer": {"low": -math.inf, "high": 2.00001}, "prediction": ""}, "f1")["items"] == [
        {"said": "", "right": {"low": None, "high": 2.0}}
    ]


def test_a_skipped_example_says_why() -> None:
    assert answers({"id": "a", "skipped": "too long"}, "f1") == {"facts": {"skipped": "too long"}}


@given(st.dictionaries(names, values, max_size=6))
def test_whatever_is_stored_becomes_json(record: dict[str, object]) -> None:
    content = answers(record, "accuracy")
    assert json.loads(json.dumps(content, allow_nan=False)) == content
