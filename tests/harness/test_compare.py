from __future__ import annotations

from typing import Any

import pytest
import torch

import contextlab
from contextlab.backbone import load
from contextlab.benchmarks.examples import Question, Reading
from contextlab.benchmarks.prompts import Wording, prompt
from contextlab.benchmarks.protocols.answers import document_protocol
from contextlab.benchmarks.task import Options
from contextlab.errors import UserError
from contextlab.harness.compare import AskProtocol, compare
from contextlab.harness.runner import warm_meter
from contextlab.harness.side_by_side import LOGPROB
from contextlab.method import Lengths

QUESTION = prompt("document-question").format(text="What is red?")
TEXT = "The red key is in the box. " * 3
QUESTIONS = ["Where is the key?", ("What is red?", "the key")]
TINY = {"backbone": "tiny-llama", "device": "cpu", "max_new_tokens": 5}


@pytest.mark.parametrize(("wording", "text"), [("plain", "Who?\nAnswer:"), ("chat", "Who? [/]\n")])
def test_a_right_answer_follows_all_of_the_question(wording: Wording, text: str) -> None:
    backbone = load("tiny-llama", device="cpu")
    prompt, answer = AskProtocol(wording, Options(), 5).tokenise(backbone, "", text, Question("1", "Who?", ("Ann",)))
    assert backbone.decode(prompt + answer) == text + (" Ann" if wording == "plain" else "Ann")


def test_answers_and_costs_are_those_of_a_benchmark() -> None:
    seen = compare("window(N=32),closed-book", TEXT, QUESTIONS, **TINY)
    reading = Reading("r", "r", TEXT, (Question("0", QUESTIONS[0], ()), Question("1", "What is red?", ("the key",))))
    for own in seen.methods:
        method = contextlab.load(own.method, "tiny-llama", device="cpu")
        meter = warm_meter(method, 0, counting=True)
        protocol = document_protocol(Options())
        protocol.max_new_tokens, protocol.scores = 5, {}
        with torch.no_grad():
            record = protocol.evaluate(meter, reading, reading)
        measures = meter.take()
        assert own.answers == tuple(entry["prediction"] for entry in record["questions"])
        assert own.cost["state"] == measures["state"]
        for phase, cost in measures["cost"].items():
            timeless = {key: value for key, value in cost.items() if key not in ("seconds", "joules")}
            assert timeless.items() <= own.cost[phase].items()


def test_the_log_probability_is_that_of_the_right_answer_after_text_and_question() -> None:
    (own,) = compare("window", TEXT, [("What is red?", "the key")], **TINY).methods
    method = contextlab.load("window", "tiny-llama", device="cpu")
    text, answer = (method.backbone.encode(part) for part in (f"{TEXT.rstrip()}\n\n{QUESTION}", " the key"))
    with torch.no_grad():
        state, _ = method.read(
            method.start(ahead=Lengths(len(TEXT.rstrip()), len(text) + len(answer) - len(TEXT.rstrip()))),
            torch.tensor([text]),
        )
    expected = method.score(state, [answer])[0, 0].mean()
    assert own.logprobs[0] == pytest.approx(float(expected), abs=1e-5)


def test_methods_may_be_loaded_and_named_and_keep_their_order() -> None:
    loaded = contextlab.load("sinks", "tiny-gpt2", device="cpu", recent=32)
    seen = compare([loaded, "window(N=32),closed-book"], TEXT, "Where?", max_new_tokens=2)
    assert [own.method for own in seen.methods] == ["sinks(recent=32)", "window(N=32)", "closed-book"]
    # A name is read on the backbone of the loaded method.
    named = compare("window(N=32)", TEXT, "Where?", max_new_tokens=2, backbone="tiny-gpt2", device="cpu")
    assert seen.methods[1].answers == named.methods[0].answers


def test_frames_have_a_row_for_every_answer_and_every_method() -> None:
    seen = compare("window(N=32),closed-book", TEXT, QUESTIONS, **TINY)
    frame, costs = seen.to_pandas(), seen.costs()
    assert list(frame["method"]) == ["window(N=32)", "closed-book"] * 2
    assert list(frame[LOGPROB].isna()) == [True, True, False, False]
    assert list(costs.index) == ["window(N=32)", "closed-book"]
    assert costs.loc["closed-book", "TFLOPs contextualize"] == 0 < costs.loc["window(N=32)", "TFLOPs contextualize"]
    assert costs.loc["closed-book", "state MiB"] < costs.loc["window(N=32)", "state MiB"]


def test_what_is_shown_is_escaped_and_not_cut_off() -> None:
    evil = "<script>alert(1)</script>\x1b[2J" + "x" * 200
    seen = compare("closed-book", evil, [(evil, evil)], **{**TINY, "max_new_tokens": 1})
    page, text = seen._repr_html_(), repr(seen)
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "x" * 200 in page
    assert "\x1b" not in page + text
    assert "closed-book" in text


@pytest.mark.parametrize("questions", ["Where?", ["Where?", "When?"], QUESTIONS])
def test_only_what_was_asked_for_is_shown(questions: Any) -> None:
    seen = compare("closed-book", TEXT, questions, **TINY)
    for shown in (seen._repr_html_(), repr(seen)):
        assert (LOGPROB in shown) == (questions is QUESTIONS)
        assert "Where" in shown
        assert "state MiB" in shown
    assert ("the key" in repr(seen)) == (questions is QUESTIONS)


def test_an_empty_context_costs_no_reading() -> None:
    (own,) = compare("window(N=32)", "", "Where?", **TINY).methods
    assert own.costs[0] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("windw", TEXT, "Q?"), "did you mean 'window'"),
        (("window", TEXT, []), "There are no questions"),
        (("window", TEXT, [("Q?", "a", "b")]), "is no question"),
        (("window", TEXT, [("Q?", 3)]), "is no question"),
        (("window", TEXT, " "), "is no question"),
        (("window", TEXT, [3]), "is no question"),
        (("window", 3, "Q?"), "The context is of type int"),
        (([], TEXT, "Q?"), "There are no methods"),
        (([3], TEXT, "Q?"), "3 is no method"),
        ((3, TEXT, "Q?"), "3 is no method"),
        (("full", TEXT * 9, "Q?"), "give a shorter text"),
    ],
)
def test_a_mistake_is_one_sentence(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        compare(*arguments, **TINY)
