from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import upstream_files as upstream
from hypothesis import given
from hypothesis import strategies as st
from test_states import built

import contextlab
from contextlab.accounting.ledger import Ledger, Meter
from contextlab.backbone import load
from contextlab.benchmarks.examples import Reading
from contextlab.benchmarks.prompts import published
from contextlab.benchmarks.protocols.answers import AnswerProtocol
from contextlab.benchmarks.task import Dataset
from contextlab.benchmarks.tasks import key_value
from contextlab.benchmarks.tasks.key_value import KeyValue, KeyValueConfig, Record, as_json, places
from contextlab.errors import UserError

FILE = "lost_in_the_middle/kv_retrieval_data/kv-retrieval-75_keys.jsonl"


pytestmark = pytest.mark.usefixtures("no_data")


@functools.cache
def backbone() -> Any:
    return load("tiny-llama", device="cpu")


def loaded(split: str, data: Path | None = None, **settings: Any) -> Dataset:
    return KeyValue(KeyValueConfig(**settings)).load(split, data)


def pairs(reading: Reading) -> list[tuple[str, str]]:
    return [*json.loads(reading.context[reading.context.index("{") :]).items()]


def assert_asked_pair_at_its_position(reading: Reading) -> None:
    (question,) = reading.questions
    assert pairs(reading)[question.details["position"]] == (question.text, *question.answers)


@given(st.integers(2, 12), st.data())
def test_the_asked_pair_moves_and_the_others_keep_their_order(count: int, data: st.DataObject) -> None:
    rows = tuple((f"k{n}", f"v{n}") for n in range(count))
    target, position = rows[data.draw(st.integers(0, count - 1))], data.draw(st.integers(0, count - 1))
    moved = Record("r", rows, target).at(position)
    assert moved[position] == target
    assert [pair for pair in moved if pair != target] == [pair for pair in rows if pair != target]
    assert dict(moved) == dict(rows)


def test_positions_are_those_of_the_paper() -> None:
    assert places(75, 4) == [0, 24, 49, 74]
    assert places(140, 5) == [0, 34, 69, 104, 139]
    assert places(300, 7) == [0, 49, 99, 149, 199, 249, 299]
    assert places(3, 9) == [0, 1, 2]


@pytest.mark.parametrize("query_aware", [False, True])
def test_every_record_is_asked_at_every_position(query_aware: bool, tmp_path: Path) -> None:
    root = upstream.write(tmp_path / "data")
    dataset = loaded("75", root, positions=4, samples=3, query_aware=query_aware)
    assert [reading.questions[0].details["position"] for reading in dataset.examples] == [0, 24, 49, 74] * 3
    assert [reading.work for reading in dataset.examples] == [f"75/{n}" for n in range(3) for _ in range(4)]
    for reading in dataset.examples:
        assert_asked_pair_at_its_position(reading)
        assert len(pairs(reading)) == 75
        assert (reading.context.count(f'"{reading.questions[0].text}"') == 2) == query_aware


@pytest.mark.parametrize("query_aware", [False, True])
def test_the_prompt_is_the_published_one(query_aware: bool, shared: Path) -> None:
    name = "kv_retrieval" + "_with_query_aware_contextualization" * query_aware
    text = (shared / f"data/lost_in_the_middle/prompts/{name}.prompt").read_text().rstrip("\n")
    task = KeyValue(KeyValueConfig(query_aware=query_aware, samples=1))
    reading = task.load("75", None).examples[0]
    (question,) = reading.questions
    whole = task.protocol("75").whole(reading, question)
    assert whole == text.replace("{formatted_kv_records}", as_json(pairs(reading))).replace("{key}", question.text)
    licence = (shared / "data/lost_in_the_middle/LICENSE").read_text()
    assert published("key-value")["licence"] == licence


@pytest.mark.parametrize("query_aware", [False, True])
def test_generated_texts_have_as_many_pairs_as_fit(query_aware: bool) -> None:
    for tokens in (700, 1500, 2600):
        config = KeyValueConfig(tokens=tokens, samples=3, query_aware=query_aware)
        task = KeyValue(config).on(backbone())
        protocol = task.protocol("generated")
        lengths = [
            len(backbone().encode(protocol.whole(reading, reading.questions[0])))
            for reading in task.load("generated", None).examples
        ]
        assert tokens - 82 < max(lengths) <= tokens  # a pair has 82 characters
    with pytest.raises(UserError, match="Two pairs have more tokens than tokens=300: raise tokens"):
        KeyValue(KeyValueConfig(tokens=300, query_aware=True)).on(backbone()).load("generated", None)


def test_generated_pairs_follow_from_the_seed() -> None:
    first, second, other = (loaded("generated", keys=9, samples=2, seed=seed) for seed in (1, 1, 2))
    assert first == second != other
    assert len(pairs(first.examples[0])) == 9
    for reading in first.examples:
        assert_asked_pair_at_its_position(reading)
    uuids = [text for reading in first.examples[::5] for pair in pairs(reading) for text in pair]
    assert len(set(uuids)) == 36
    assert all(len(text) == 36 and text[14] == "4" for text in uuids)
    assert first.note == "generated pairs of UUIDs, made for this task"


def test_the_number_of_published_pairs_cannot_be_set() -> None:
    for settings in ({"keys": 9}, {"tokens": 900}):
        with pytest.raises(UserError, match="split 75 have 75 pairs: set keys or tokens with split generated"):
            loaded("75", **settings)


def test_without_the_file_pairs_are_generated_and_named(tmp_path: Path) -> None:
    dataset = loaded("140", samples=1)
    assert len(pairs(dataset.examples[0])) == 140
    assert dataset.note == "generated pairs of UUIDs, not those of lost in the middle"
    with pytest.raises(UserError, match="There is no file"):
        loaded("300", upstream.write(tmp_path / "data"))


def test_a_record_without_its_asked_pair_is_named(tmp_path: Path) -> None:
    good = upstream.key_value(0)
    repeated = {**good, "ordered_kv_records": good["ordered_kv_records"] * 2}
    for broken in ({**good, "key": "other"}, {**good, "ordered_kv_records": [["a"]]}, repeated, {**good, "value": 3}):
        upstream.put(tmp_path / FILE, upstream.lines([good, broken]))
        with pytest.raises(UserError, match="Line 2 of"):
            loaded("75", tmp_path)


def test_an_answer_is_right_when_it_contains_the_value() -> None:
    protocol = KeyValue().protocol("75")
    assert isinstance(protocol, AnswerProtocol)
    question = loaded("75", samples=1).examples[0].questions[0]
    score = protocol.scores["accuracy"]
    (value,) = question.answers
    assert score(f' "{value.upper()}"\nKey: "x"', question) == 1.0
    assert score(value[:-1], question) == score("", question) == 0.0
    assert protocol.ends == ()
    assert protocol.max_new_tokens == 100
    entries = [{"position": place, "accuracy": float(place == 74)} for place in (0, 37, 74, 74)]
    metrics = protocol.summarise([{"id": "r", "work": "r", "questions": entries}])
    assert {name: metric.value for name, metric in metrics.items()} == {
        "accuracy": 0.5,
        "accuracy_0": 0.0,
        "accuracy_37": 0.0,
        "accuracy_74": 1.0,
    }


def test_the_value_of_the_asked_pair_can_be_scored() -> None:
    task = KeyValue(KeyValueConfig(keys=3, samples=1, positions=2, answer="reference"))
    protocol, reading = task.protocol("generated"), task.load("generated", None).examples[0]
    method = built("sliding", backbone())
    record = protocol.evaluate(Meter(method, Ledger("cpu")), reading, reading)
    (question,), (entry,) = reading.questions, record["questions"]
    before = backbone().encode(protocol.whole(reading, question))
    tokens = backbone().encode(f"{protocol.whole(reading, question)} {question.answers[0]}")
    _, logprobs_BT = method.read(method.start(), torch.tensor([tokens]))
    assert entry["nats_per_token"] == pytest.approx(-float(logprobs_BT[0, len(before) :].mean()), abs=1e-4)
    assert list(protocol.summarise([record])) == ["nats_per_token", "nats_per_token_0"]


def test_the_local_records_are_the_published_ones(shared: Path) -> None:
    for split in ("75", "140"):
        dataset = loaded(split, shared / "data", samples=250)
        assert dataset.note == "real: 250 of 500 records of lost in the middle, 1,250 questions"
        for reading in dataset.examples:
            assert_asked_pair_at_its_position(reading)
            assert len(pairs(reading)) == int(split)


def test_a_run_reads_the_pairs_before_the_key(tmp_path: Path) -> None:
    results = contextlab.bench(
        "window",
        f"{key_value.__file__}:KeyValue/generated(keys=3,samples=1,positions=2)",
        backbone="tiny-llama",
        limit=1,
        out=tmp_path,
        progress=False,
    )
    (run,) = results.runs
    assert run.metrics.keys() == {"accuracy", "accuracy_0"}
    reading = loaded("generated", keys=3, samples=1, positions=2).examples[0]
    head = KeyValue().template[0]
    assert run.cost.contextualize is not None
    assert run.cost.contextualize.tokens == len(backbone().encode(head)) + len(backbone().encode(reading.context))
