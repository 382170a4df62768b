from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_answers import OTHER, OWN, FakeMeter
from test_states import built

from contextlab import backbone as backbones
from contextlab import process, registry
from contextlab.accounting.ledger import Ledger, Meter
from contextlab.benchmarks.examples import Question, Reading
from contextlab.benchmarks.protocols.references import ReferenceProtocol
from contextlab.benchmarks.task import Options
from contextlab.cli import main as cli
from contextlab.errors import UserError
from contextlab.harness import store

PROMPTS = ("document-question", "question")


@pytest.fixture(scope="module")
def tiny() -> Any:
    return backbones.load("tiny-llama", device="cpu")


@pytest.mark.parametrize("turns", ["requests", "prompts"])
def test_the_nats_are_those_of_the_answer_in_the_whole_text(tiny: Any, turns: Any) -> None:
    method = built("full", tiny)
    example = Reading("own", "own", "It is told. Once.", OWN.questions[:2])
    protocol = ReferenceProtocol(("Q {text}:", "Q {text}:"), Options(turns=turns))
    with process.seeded(0):
        record = protocol.evaluate(Meter(method, Ledger("cpu")), example, OTHER)
    for question, entry in zip(example.questions, record["questions"], strict=True):
        assert entry["answer"] == question.answers[0]
        whole = protocol.whole(example, question)
        tokens = tiny.encode(f"{whole} {question.answers[0]}")
        _, logprobs_BT = method.read(method.start(), torch.tensor([tokens]))
        answer = logprobs_BT[0, len(tiny.encode(whole)) :]
        assert entry["nats_per_token"] == pytest.approx(-float(answer.mean()), abs=1e-4)


@pytest.mark.parametrize("exact", [True, False])
def test_only_the_answer_counts(exact: bool) -> None:
    meter: Any = FakeMeter(exact_streaming=exact)
    record = ReferenceProtocol(PROMPTS, Options()).evaluate(meter, OWN, OTHER)
    assert [entry["nats_per_token"] for entry in record["questions"]] == [2.0] * len(OWN.questions)
    ends = [text for (text,) in meter.candidates]
    assert all(text.endswith(f" answer {n}") for n, text in enumerate(ends))
    assert len(meter.question_texts) == (len(OWN.questions) if exact else 0)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0, 20), min_size=2, max_size=9))
def test_metrics_are_means_over_questions_and_may_exceed_1(nats: list[float]) -> None:
    protocol = ReferenceProtocol(PROMPTS, Options(turns="gold"), by="age")
    entries = [{"age": "old", "turn": 1, "nats_per_token": value} for value in nats]
    metrics = protocol.summarise([{"id": str(n), "work": str(n), "questions": [e]} for n, e in enumerate(entries)])
    assert list(metrics) == ["nats_per_token", "nats_per_token_old", "nats_per_token_turn_1"]
    assert all(metric.value == pytest.approx(sum(nats) / len(nats)) for metric in metrics.values())
    assert not protocol.measure.higher_is_better


@pytest.mark.parametrize("name", ["squad", "streamingqa"])
def test_it_is_a_setting_of_the_tasks_with_short_answers(name: str) -> None:
    assert isinstance(registry.task(name, {"answer": "reference"}).protocol("512"), ReferenceProtocol)
    assert not isinstance(registry.task(name).protocol("512"), ReferenceProtocol)
    with pytest.raises(UserError, match="use turns=gold"):
        registry.task(name, {"answer": "reference", "turns": "own"}).protocol("512")


def test_a_question_without_a_reference_is_refused() -> None:
    bare = Reading("bare", "bare", "It is told.", (Question("q1", "What?", ()),))
    meter: Any = FakeMeter()
    with pytest.raises(UserError, match="Question 'q1' has no reference answer"):
        ReferenceProtocol(PROMPTS, Options()).evaluate(meter, bare, bare)


def test_a_run_stores_nats_of_answers(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["bench", "--backbone", "tiny-llama", "--limit", "2", "--out", str(tmp_path)]
    assert cli.main([*command, "--method", "window,sliding", "--task", "squad(answer=reference,tokens=40)"]) == 0
    assert "nats_per_token" in capsys.readouterr().out
    for folder in tmp_path.iterdir():
        result = store.read_result(folder)
        assert result.split == "512(answer=reference)"
        assert list(result.metrics) == ["nats_per_token"]
