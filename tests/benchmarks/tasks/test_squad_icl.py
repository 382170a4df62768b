from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from contextlab.benchmarks.examples import Reading
from contextlab.benchmarks.task import Dataset
from contextlab.benchmarks.tasks.squad_icl import SQuADICL, SQuADICLConfig
from contextlab.errors import UserError

ARTICLES, PARAGRAPHS, QUESTIONS = 6, 3, 4
EACH_HALF = ARTICLES * PARAGRAPHS * QUESTIONS // 2


def article(number: int) -> dict[str, Any]:
    def question(paragraph: int, index: int) -> dict[str, Any]:
        name = f"{number}-{paragraph}-{index}"
        return {"id": name, "question": f"Which is {name}?", "answers": [{"text": f"It is {name} "}]}

    paragraphs = [
        {"context": f"Passage {number}-{paragraph}.", "qas": [question(paragraph, index) for index in range(QUESTIONS)]}
        for paragraph in range(PARAGRAPHS)
    ]
    return {"title": str(number), "paragraphs": paragraphs}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "squad").mkdir()
    content = {"data": [article(number) for number in range(ARTICLES)]}
    (tmp_path / "squad/dev-v1.1.json").write_text(json.dumps(content))
    return tmp_path


def loaded(data: Path | None, **settings: Any) -> Dataset:
    return SQuADICL(SQuADICLConfig(**settings)).load("dev", data)


def readings(data: Path, **settings: Any) -> list[Reading]:
    return [reading for reading in loaded(data, **settings).examples if isinstance(reading, Reading)]


def test_every_question_of_every_second_article_is_asked_once(data: Path) -> None:
    ids = [question.id for reading in readings(data, n=5) for question in reading.questions]
    assert len(ids) == len(set(ids)) == EACH_HALF
    assert {int(name[0]) % 2 for name in ids} == {0}
    assert {len(reading.questions) for reading in readings(data, n=5)} == {5, EACH_HALF % 5}


def test_demonstrations_are_of_other_articles_and_differ_between_draws(data: Path) -> None:
    drawn = [reading.shown for reading in readings(data, k=3, memory=20, n=5)]
    assert all(int(question.id[0]) % 2 == 1 for shown in drawn for question in shown)
    assert all(len({question.id for question in shown}) == 23 for shown in drawn)
    assert len({tuple(question.id for question in shown) for shown in drawn}) == len(drawn)


def test_what_is_in_memory_stands_before_the_same_demonstrations(data: Path) -> None:
    for few, many in zip(readings(data, k=2), readings(data, k=2, memory=10), strict=True):
        assert many.context.endswith("\n\n" + few.context)
        assert many.questions == few.questions


def test_demonstrations_have_the_prompt_of_the_paper(data: Path) -> None:
    (reading, *_) = readings(data, k=1)
    name = reading.shown[0].id
    passage, _, _ = name.rpartition("-")
    assert reading.context == f"Passage: Passage {passage}.\n Question: Which is {name}? Answer: It is {name}"
    question = reading.questions[0]
    whole = SQuADICL(SQuADICLConfig(k=1)).protocol("dev").whole(reading, question)
    assert whole == f"{reading.context}\n\n{question.text} Answer:"


def test_without_demonstrations_the_question_stands_alone(data: Path) -> None:
    assert {reading.context for reading in readings(data, k=0)} == {""}


def test_more_demonstrations_than_there_are_are_refused(data: Path) -> None:
    assert len(readings(data, k=EACH_HALF)[0].shown) == EACH_HALF
    with pytest.raises(UserError, match=f"has {EACH_HALF} demonstrations here: lower k=3 or memory={EACH_HALF}"):
        loaded(data, memory=EACH_HALF)


def test_the_data_and_the_sample_are_named(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert loaded(data).note.startswith("your own data in the layout of SQuAD")
    monkeypatch.delenv("CONTEXTLAB_DATA", raising=False)
    monkeypatch.setenv("CONTEXTLAB_CACHE", str(tmp_path / "cache"))
    sample = loaded(None)
    assert sample.source == "sample"
    assert sample.note == "generated sample, not SQuAD"


def test_a_draw_is_a_cluster(data: Path) -> None:
    (reading, *_) = readings(data)
    assert all("cluster" not in question.details for question in reading.questions)
