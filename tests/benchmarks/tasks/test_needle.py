from __future__ import annotations

import re
from pathlib import Path

import pytest

import contextlab
from contextlab.benchmarks.data import phrases
from contextlab.benchmarks.data.sample import planted
from contextlab.benchmarks.tasks import needle
from contextlab.benchmarks.tasks.needle import DISTANCES, OPTIONS, PROMISES, STORIES, Needle

SPLITS = list(Needle.splits)


@pytest.mark.parametrize("split", ["1k", "2k", "8k"])
def test_every_story_asks_twice_about_each_of_its_promises(split: str) -> None:
    readings = Needle().load(split, None).examples
    assert len(readings) == STORIES
    for reading in readings:
        reaches = [question.details["reach"] for question in reading.questions]
        assert len(set(reaches)) == PROMISES
        assert reaches == [reach for reach in dict.fromkeys(reaches) for _ in range(2)]
        assert reaches[-1] == split
        for question in reading.questions:
            assert question.answers[0] in question.options
            assert len(set(question.options)) == 4
            where = question.text.startswith("Where")
            assert {" at the " in option for option in question.options} == {where}


@pytest.mark.parametrize("split", ["1k", "4k"])
def test_answers_occur_at_their_position_only(split: str) -> None:
    for reading in Needle().load(split, None).examples:
        for question in reading.questions:
            assert question.place is not None
            paragraphs = [part for part in reading.context.split("\n\n") if _thing(question.text) in part]
            assert len(paragraphs) == 1
            assert all(part in paragraphs[0] for part in question.answers[0].split(" at the "))
            start = reading.context.index(paragraphs[0])
            assert start <= question.place < start + len(paragraphs[0])
            for option in {*question.options} - {*question.answers}:
                assert not any(part in reading.context for part in option.split(" at the "))
            name = question.text.split()[2] if question.text.startswith("Where") else question.text.split()[3]
            assert re.findall(rf"\b{name}\b", reading.context) == re.findall(rf"\b{name}\b", paragraphs[0])


@pytest.mark.parametrize("split", SPLITS)
def test_distances_are_those_of_their_names_within_a_paragraph_or_two(split: str) -> None:
    for reading in Needle().load(split, None).examples[:4]:
        for question in reading.questions:
            words = len(reading.context[question.place :].split())
            assert abs(words - DISTANCES[question.details["reach"]] / 1.3) < 260


def test_the_right_option_is_equally_often_at_every_position() -> None:
    readings = Needle().load("2k", None).examples
    positions = [question.options.index(question.answers[0]) for reading in readings for question in reading.questions]
    assert min(positions.count(position) for position in range(OPTIONS)) > len(positions) / OPTIONS / 2


def test_the_stories_are_those_of_the_stored_results() -> None:
    assert Needle().load("2k", None).sha256 == "20890d53aa1a7425fa9d422b7922be39bd4040a5c1a0195d3f83ff04b7949fbf"


def test_planted_promises_follow_from_the_seed() -> None:
    assert planted(900, [100, 500], 1) == planted(900, [100, 500], 1) != planted(900, [100, 500], 2)
    story, decoys = planted(900, [100, 500], 1)
    facts = story.facts
    assert [fact.distance > 300 for fact in facts] == [False, False, True, True]
    assert {fact.answer.split(" at the ")[0] for fact in (*facts, *decoys)[::2]} <= set(phrases.SPOTS)
    assert len({fact.answer for fact in (*facts, *decoys)}) == 8


def test_metrics_give_the_reach_as_a_curve() -> None:
    protocol = Needle().protocol("1k")
    entries = [{"reach": reach, "accuracy": float(reach != "1k"), "nats_per_token": 1.0} for reach in ("512", "1k")]
    metrics = protocol.summarise([{"id": "0", "work": "0", "questions": entries}])
    assert {name: metric.value for name, metric in metrics.items()} == {
        "accuracy": 0.5,
        "nats_per_token": 1.0,
        "accuracy_512": 1.0,
        "accuracy_1k": 0.0,
    }


def test_a_run_reads_every_story_once_and_subtracts_the_wrong_one(tmp_path: Path) -> None:
    task = f"{needle.__file__}:Needle"
    results = contextlab.bench(
        ["window"], [task], split="1k", backbone="tiny-llama", limit=2, tokens=90, context="own,wrong", out=tmp_path
    )
    own, wrong = results.runs
    assert [run.cost.contextualize and run.cost.contextualize.tokens for run in (own, wrong)] == [90, 90]
    assert own.data.examples == 2
    assert own.metrics["accuracy"].n == 2 * PROMISES * 2
    (difference,) = results.differences
    assert (difference.label, difference.measure) == ("window, own - wrong", "accuracy")
    expected = own.metrics["accuracy"].value - wrong.metrics["accuracy"].value
    assert difference.metric.value == pytest.approx(expected)


def _thing(question: str) -> str:
    return question.rpartition(" the ")[2].removesuffix("?")
