from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextlab.benchmarks.data.questions import (
    LENGTHS,
    estimated_tokens,
    grouped,
    in_turns,
    sample_documents,
    sample_readings,
)
from contextlab.benchmarks.examples import Passage, Question

LONG = "word " * 300


def documents(count: int) -> list[Passage]:
    return [
        Passage(f"text {n} {LONG}", (Question(f"{n}-0", "?", ("a",)), Question(f"{n}-1", "?", ("b",))))
        for n in range(count)
    ]


@given(st.integers(1, 40), st.sampled_from(sorted(LENGTHS)))
def test_grouping_keeps_every_document_and_question_in_order(count: int, split: str) -> None:
    passages = documents(count)
    readings = grouped(passages, split)
    assert "\n\n".join(reading.context for reading in readings) == "\n\n".join(d.text for d in passages)
    questions = [question.id for reading in readings for question in reading.questions]
    assert questions == [question.id for document in passages for question in document.questions]
    assert len({reading.id for reading in readings}) == len(readings)


@given(st.integers(1, 40), st.sampled_from(sorted(LENGTHS)))
def test_groups_are_as_many_and_as_even_as_numpy_splits_them(count: int, split: str) -> None:
    passages = documents(count)
    total = sum(estimated_tokens(document.text) for document in passages)
    expected = np.array_split(np.arange(count), min(count, math.ceil(total / LENGTHS[split])))
    sizes = [len(reading.questions) // 2 for reading in grouped(passages, split)]
    assert sizes == [len(part) for part in expected]


def test_a_suffix_of_the_split_does_not_change_the_length() -> None:
    texts = [[reading.context for reading in grouped(documents(9), split)] for split in ("1k", "1k-recent")]
    assert texts[0] == texts[1]


@given(st.lists(st.lists(st.integers(), max_size=5), max_size=5))
def test_turns_take_the_first_of_every_row_first(rows: list[list[int]]) -> None:
    turns = [(turn, row) for row, items in enumerate(rows) for turn in range(len(items))]
    assert in_turns(rows) == tuple(rows[row][turn] for turn, row in sorted(turns))


def test_every_sample_document_answers_its_own_questions() -> None:
    for document in sample_documents(3):
        assert document.questions
        for question in document.questions:
            assert all(part in document.text for part in question.answers[0].split(" at the "))


def test_sample_readings_are_different_stories_that_answer_their_questions() -> None:
    readings = sample_readings(3, 400, 5, {"category": "one"})
    assert len({reading.context for reading in readings}) == len({reading.id for reading in readings}) == 3
    questions = [(reading, question) for reading in readings for question in reading.questions]
    assert len({question.id for _, question in questions}) == len(questions) > 3
    for reading, question in questions:
        assert question.details == {"category": "one"}
        assert all(part in reading.context for part in question.answers[0].split(" at the "))
    assert sample_readings(2, 400, 5)[1].context == readings[1].context


@pytest.mark.parametrize(("text", "marks"), [("", 0), ("one two", 2), ("Don't stop!", 5)])
def test_tokens_are_estimated_from_words_and_marks(text: str, marks: int) -> None:
    assert estimated_tokens(text) == pytest.approx(1.16 * marks)
