"""The clusters of every task, and that the parts of a record are those of the metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import upstream_files as upstream

from contextlab import registry
from contextlab.benchmarks.metrics.intervals import jackknife
from contextlab.benchmarks.protocols.answers import NATS, QuestionProtocol, question_parts
from contextlab.benchmarks.task import Part, Protocol


def read(reading: Any, measures: tuple[str, ...], value: float = 0.5) -> dict[str, Any]:
    """The record of a reading, with the details of its questions."""
    entries = [{"id": q.id, **q.details, **dict.fromkeys(measures, value)} for q in reading.questions]
    return {"id": reading.id, "work": reading.work, "questions": entries}


@pytest.mark.parametrize(
    ("name", "split", "expected"),
    [
        ("squad", "512", ["article/1", "article/2"]),
        ("situatedqa", "dev", ["who leads"]),
        ("locomo", "all", None),
        ("msc", "self-instruct", None),
        ("streamingqa", "512", None),
        ("needle", "1k", None),
        ("metaicl", "k4", None),
    ],
)
def test_questions_are_drawn_together_where_they_share_something(
    name: str, split: str, expected: list[str] | None, tmp_path: Path
) -> None:
    """The cluster is the article, the question with several dates, or else the work."""
    task = registry.task(name)
    protocol = task.protocol(split)
    assert isinstance(protocol, QuestionProtocol)
    readings = task.load(split, upstream.write(tmp_path)).examples
    records = [read(reading, protocol.measures) for reading in readings]
    parts = [part for record in records for part in protocol.parts(record)[protocol.measures[0]]]
    assert sorted({part.cluster for part in parts}) == (expected or sorted({reading.work for reading in readings}))
    assert len(parts) == sum(len(reading.questions) for reading in readings)
    assert {part.stratum for part in parts} == ({reading.work for reading in readings} if name == "metaicl" else {""})


NATS_RECORD = {"nats": 30.0, "tokens": 10, "words": 7}
SPANS = {key: {"tokens": 0, "nats": 0.0} for key in ("after_first", "cold", "warm")}
RECORDS: list[tuple[str, str, dict[str, Any], dict[str, list[Part]]]] = [
    ("pg22", "S1", {"id": "b", **NATS_RECORD, **SPANS}, {NATS: [Part(30.0, 10, "b")]}),
    ("pg22", "S1", {"id": "b", "skipped": "too short"}, {}),
    ("msc-ppl", "session-5", {"id": "c/1", "work": "c", **NATS_RECORD}, {NATS: [Part(30.0, 10, "c")]}),
    (
        "chapterbreak",
        "ctx-512",
        {"id": "w/0", "work": "w", "nats": [2.0, 3.0], "lengths": [4, 5], "answer": 1, "correct": False},
        {"accuracy": [Part(0.0, 1.0, "w")], NATS: [Part(15.0, 5, "w")]},
    ),
    (
        "sst2",
        "n2",
        {"id": "test/3", "answer": 0, "prediction": 0, "correct": True, "nats": [0.1, 2.0]},
        {"accuracy": [Part(1.0, 1.0, "test/3")]},
    ),
]


@pytest.mark.parametrize(("name", "split", "record", "expected"), RECORDS)
def test_a_record_adds_its_parts_to_the_metrics(
    name: str, split: str, record: dict[str, Any], expected: dict[str, list[Part]]
) -> None:
    protocol = registry.task(name).protocol(split)
    assert protocol.parts(record) == expected
    if expected:
        assert protocol.measure is not None
        metrics = protocol.summarise([record])
        assert protocol.measure.name == next(iter(metrics))
        assert {name: jackknife(parts).value for name, parts in expected.items()} == {
            name: metrics[name].value for name in expected
        }


@pytest.mark.parametrize("name", registry.tasks())
def test_every_task_names_its_measure_and_a_direction(name: str) -> None:
    task = registry.task(name)
    measure = task.protocol(task.default_split).measure
    assert measure is not None
    assert measure.higher_is_better is not measure.name.startswith("nats")
    assert measure.bounded is measure.higher_is_better


def test_a_protocol_of_ones_own_needs_no_parts() -> None:
    class Own(Protocol):
        evaluate = summarise = None  # type: ignore[assignment]

        def quality(self, record: dict[str, Any]) -> float:
            return 1.0

    protocol = Own()
    assert protocol.measure is None
    assert protocol.parts({"id": "a"}) == {}


def test_works_count_alike_where_the_metric_is_a_mean_over_them() -> None:
    records = [
        {"work": "large", "questions": [{"m": 1.0}] * 9},
        {"work": "small", "questions": [{"m": 0.0, "cluster": "other"}]},
    ]
    assert jackknife(question_parts(records, "m")).value == 0.9
    parts = question_parts(records, "m", over_works=True)
    assert jackknife(parts).value == 0.5
    assert {part.cluster for part in parts} == {"large", "other"}
