from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from nltk.stem.porter import PorterStemmer

import contextlab
from contextlab.backbone import load
from contextlab.benchmarks.data import phrases
from contextlab.benchmarks.examples import Question
from contextlab.benchmarks.task import Dataset
from contextlab.benchmarks.tasks import association
from contextlab.benchmarks.tasks.association import (
    NAMES,
    NEEDLES,
    TOGETHER,
    Association,
    AssociationConfig,
    content_words,
    names_only,
)
from contextlab.errors import UserError


@pytest.fixture(autouse=True)
def no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONTEXTLAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CONTEXTLAB_DATA", raising=False)


def stems(text: str) -> set[str]:
    return {PorterStemmer().stem(word) for word in content_words(text.format(name=""))}


def loaded(split: str = "associated", data: Path | None = None, **settings: Any) -> Dataset:
    return Association(AssociationConfig(**settings)).load(split, data)


def test_no_question_shares_a_content_word_with_any_fact() -> None:
    facts = set().union(*(stems(needle.fact) for needle in NEEDLES))
    for needle in NEEDLES:
        assert stems(needle.associated)
        assert stems(needle.associated).isdisjoint(facts), needle


def test_a_literal_question_has_all_words_of_its_fact_and_of_no_other() -> None:
    for needle in NEEDLES:
        assert needle.literal == needle.fact.replace("{name}", "Who").replace(".", "?")
        others = set().union(*(stems(other.fact) for other in NEEDLES if other is not needle))
        assert stems(needle.literal) - others == stems(needle.fact) - others != set()


def test_names_are_different_and_occur_in_no_generated_story() -> None:
    assert len(set(NAMES)) == len(NAMES)
    assert {*NAMES}.isdisjoint([*phrases.WOMEN, *phrases.MEN])
    assert not any(a in b for a in NAMES for b in NAMES if a != b)
    assert len(NEEDLES) == 12


def test_only_the_facts_name_the_people_and_share_words_with_questions() -> None:
    seen = set()
    for reading in loaded(samples=12).examples:
        assert len(reading.questions) == TOGETHER
        rest = reading.context
        for question in reading.questions:
            needle = NEEDLES[question.details["fact"]]
            seen.add(needle)
            fact = needle.fact.format(name=question.answers[0])
            assert reading.context.index(fact) == question.place
            assert question.text == needle.associated
            rest = rest.replace(fact, "")
        words = content_words(rest)
        for question in reading.questions:
            assert words.isdisjoint(content_words(question.text))
            assert not any(name in rest for name in question.options)
            assert question.options == reading.questions[0].options
            assert len(set(question.options)) == TOGETHER
        assert {question.answers[0] for question in reading.questions} == set(reading.questions[0].options)
    assert len(seen) == len(NEEDLES)


def test_facts_stand_at_the_depths_that_records_say() -> None:
    for reading in loaded(samples=10, tokens=4000).examples:
        assert [question.details["depth"] for question in reading.questions] == [12, 37, 62, 87]
        for question in reading.questions:
            assert question.place is not None
            assert abs(100 * question.place / len(reading.context) - question.details["depth"]) < 6


def test_both_splits_have_the_same_texts_and_answers() -> None:
    for associated, literal in zip(loaded().examples, loaded("literal").examples, strict=True):
        assert associated.context == literal.context
        pairs = [*zip(associated.questions, literal.questions, strict=True)]
        assert all(question.answers == other.answers and question.options == other.options for question, other in pairs)
        assert all(other.text == NEEDLES[question.details["fact"]].literal for question, other in pairs)


def test_a_text_has_the_wanted_tokens_and_follows_from_the_seed() -> None:
    backbone = load("tiny-llama", device="cpu")
    for tokens in (400, 1111):
        task = Association(AssociationConfig(tokens=tokens, samples=4)).on(backbone)
        for reading in task.load("associated", None).examples:
            assert tokens - len(backbone.encode(reading.context)) in (0, 1)
    assert loaded(seed=1, samples=3) == loaded(seed=1, samples=3) != loaded(seed=2, samples=3)
    assert loaded(samples=3).examples == loaded(samples=5).examples[:3]
    with pytest.raises(UserError, match="The facts alone have more tokens than tokens=20: raise tokens"):
        loaded(tokens=20)


def test_books_are_used_where_there_are_some(tmp_path: Path) -> None:
    folder = tmp_path / "pg19/test"
    folder.mkdir(parents=True)
    sentence = "The lantern on the quay burned through the long and stormy autumn. "
    (folder / "1.txt").write_text(
        sentence * 20 + "Fatima asked for bread at the old mill by the river on the hill. " * 5
    )
    dataset = loaded(data=tmp_path, samples=3)
    assert dataset.note == "generated for this task: facts of its own in sentences of 1 book of pg19"
    assert all("lantern" in reading.context and "mill" not in reading.context for reading in dataset.examples)
    assert loaded().note.endswith("in sentences of generated stories")


@pytest.mark.parametrize(
    ("written", "score"),
    [("It is Bianca.", 1), ("BIANCA", 1), ("Bianca or Darius", 0), ("Darius", 0), ("nobody", 0), ("Fatima Bianca", 1)],
)
def test_a_written_answer_names_the_right_person_alone(written: str, score: int) -> None:
    question = Question("q", "Who is blind?", ("Bianca",), ("Bianca", "Darius"))
    assert names_only(written, question) == score


@pytest.mark.parametrize("answers", ["ranked", "written"])
def test_a_run_reads_a_text_once_for_its_four_questions(answers: str, tmp_path: Path) -> None:
    settings = f"tokens=400,samples=1,answers={answers}"
    results = contextlab.bench(
        "window",
        f"{association.__file__}:Association({settings})",
        backbone="tiny-llama",
        out=tmp_path,
        progress=False,
    )
    (own,) = results.runs
    assert own.cost.contextualize is not None
    assert own.cost.contextualize.tokens in (399, 400)
    assert own.metrics["accuracy"].n == TOGETHER
    assert {name for name in own.metrics if re.match(r"accuracy_", name)} == {
        f"accuracy_{depth}" for depth in (12, 37, 62, 87)
    }
