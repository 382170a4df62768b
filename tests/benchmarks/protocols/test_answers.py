from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contextlab import backbone as backbones
from contextlab.accounting.ledger import Ledger, Meter
from contextlab.benchmarks.examples import Question, Reading
from contextlab.benchmarks.metrics import qa as qa_metrics
from contextlab.benchmarks.prompts import prompt
from contextlab.benchmarks.protocols import answers
from contextlab.benchmarks.protocols.answers import AnswerProtocol, RankProtocol, document_protocol, means, stop_tokens
from contextlab.benchmarks.protocols.spans import contextualize
from contextlab.benchmarks.task import Options
from contextlab.errors import UserError
from contextlab.method import Capabilities, Lengths
from contextlab.methods.closed_book import ClosedBook
from contextlab.methods.full import Full
from contextlab.methods.window import Window, WindowConfig

PROMPTS = ("document-question", "question")
SHORT = ("recall-question", "recall-question")
SCORED = st.tuples(st.sampled_from("xy"), st.integers(0, 1))
EXACT = {"exact_match": lambda text, question: qa_metrics.exact_match(text, question.answers)}


def question(n: int, **details: Any) -> Question:
    return Question(f"q{n}", f"What is {n}?", (f"answer {n}",), (f"answer {n}", "another", "b"), details)


OWN = Reading("own", "own", "It is told. Once.\n\n", tuple(question(n) for n in range(5)))
OTHER = Reading("other", "other", "Some quite different text that is longer.", (question(9),))


class FakeMeter:
    """A byte model that writes a fixed text and prefers `another`."""

    def __init__(self, written: str = " answer 0\nmore", **capabilities: Any) -> None:
        self.written = written
        tokenizer = SimpleNamespace(all_special_ids=[255])
        self.backbone: Any = SimpleNamespace(
            name="toy",
            tokenizer=tokenizer,
            encode=lambda text: list(text.encode()),
            decode=lambda tokens: bytes(tokens).decode(),
            with_bos=list,
        )
        self.capabilities = Capabilities(**capabilities)
        self.method = self
        self.ahead: Lengths | None = None
        self.read_texts: list[str] = []
        self.prompts: list[list[str]] = []
        self.question_texts: list[str] = []
        self.candidates: list[list[str]] = []

    def start(self, batch_size: int = 1, *, ahead: Lengths | None = None) -> Any:
        self.ahead = ahead
        return self._state(1)

    def _state(self, rows: int) -> Any:
        return SimpleNamespace(length_B=torch.zeros(rows), device=torch.device("cpu"))

    def read(self, phase: str, state: Any, tokens_BT: Any, *, logprobs: bool) -> tuple[Any, None]:
        assert not logprobs
        texts = {"contextualize": self.read_texts, "query": self.question_texts}[phase]
        texts.append(bytes(tokens_BT[0].tolist()).decode())
        return state, None

    def keep(self, state: Any) -> None:
        self.kept = state

    def generate(self, phase: str, state: Any, prompts: Sequence[Sequence[int]], **options: Any) -> list[list[int]]:
        assert phase == "query"
        assert len(state.length_B) == 1
        self.options = options
        self.prompts.append([bytes(tokens).decode() for tokens in prompts])
        return [list(self.written.encode())] * len(prompts)

    def score(self, phase: str, state: Any, candidates: Sequence[Sequence[int]]) -> torch.Tensor:
        assert phase == "query"
        texts = [bytes(candidate).decode() for candidate in candidates]
        self.candidates.append(texts)
        scores = torch.zeros(1, len(texts), max(map(len, texts)))
        for row, text in enumerate(texts):
            scores[0, row, : len(text)] = -1.0 if text.endswith("another") else -2.0
            # The question may be scored together with the options, but must not count.
            scores[0, row, : max(text.find("Answer:"), 0)] = -100.0 * row
        return scores


def write(meter: FakeMeter | None = None, context: Any = "own", **options: Any) -> tuple[dict[str, Any], FakeMeter]:
    meter = meter or FakeMeter()
    protocol = AnswerProtocol(PROMPTS, Options(context=context, **options), EXACT, max_new_tokens=7)
    return protocol.evaluate(meter, OWN, OTHER), meter  # type: ignore[arg-type]


def rank(meter: FakeMeter | None = None, **options: Any) -> tuple[dict[str, Any], FakeMeter]:
    meter = meter or FakeMeter()
    return RankProtocol(PROMPTS, Options(**options)).evaluate(meter, OWN, OTHER), meter  # type: ignore[arg-type]


def test_a_context_is_read_once_and_all_questions_are_asked_of_one_state() -> None:
    record, meter = write()
    assert meter.read_texts == ["It is told. Once."]
    assert len(meter.kept.length_B) == 1
    prompts = [text for batch in meter.prompts for text in batch]
    assert prompts == ["\n\n" + prompt("document-question").format(text=item.text) for item in OWN.questions]
    assert [entry["id"] for entry in record["questions"]] == [item.id for item in OWN.questions]
    assert (record["context_tokens"], record["own_context_tokens"], record["work"]) == (17, 17, "own")


def test_an_answer_ends_with_the_line() -> None:
    record, meter = write()
    assert {entry["prediction"] for entry in record["questions"]} == {"answer 0"}
    assert [entry["exact_match"] for entry in record["questions"]] == [1.0, 0.0, 0.0, 0.0, 0.0]
    assert meter.options["max_new_tokens"] == 7
    assert set(meter.options["stop"]) == {10, 255}
    for written, answer in (("\n x", ""), ("  y  ", "y"), ("z Question: q", "z"), ("", "")):
        assert write(FakeMeter(written))[0]["questions"][0]["prediction"] == answer


@pytest.mark.parametrize(("most", "sizes"), [(64, [5]), (2, [2, 2, 1]), (1, [1] * 5)])
def test_questions_are_answered_in_batches(monkeypatch: pytest.MonkeyPatch, most: int, sizes: list[int]) -> None:
    monkeypatch.setattr(answers, "AT_ONCE", most)
    record, meter = write()
    assert [len(batch) for batch in meter.prompts] == sizes
    assert record["questions"] == write()[0]["questions"]


@pytest.mark.parametrize("ask", [write, rank])
def test_the_controls_change_what_is_read(ask: Any) -> None:
    record, meter = ask(context="wrong")
    assert meter.read_texts == [OTHER.context[-17:]]
    assert record["context_tokens"] == record["own_context_tokens"] == 17
    record, meter = ask(context="none")
    assert meter.read_texts == []
    assert (record["context_tokens"], record["own_context_tokens"]) == (0, 17)
    record, meter = ask(tokens=5)
    assert meter.read_texts == ["Once."]


def test_without_a_context_the_question_is_put_in_words_of_its_own() -> None:
    alone = [prompt("question").format(text=item.text) for item in OWN.questions]
    assert write(context="none")[1].prompts == [alone]
    assert write(FakeMeter(uses_context=False))[1].prompts == [alone]
    empty = Reading("empty", "empty", "", OWN.questions)
    meter = FakeMeter()
    AnswerProtocol(PROMPTS, Options(), EXACT).evaluate(meter, empty, empty)  # type: ignore[arg-type]
    assert meter.prompts == [alone]
    assert meter.read_texts == []


def test_ahead_holds_the_lengths_of_context_question_and_answer() -> None:
    _, meter = write()
    longest = max(len(text) for batch in meter.prompts for text in batch)
    assert meter.ahead == Lengths(17, longest + 7)
    _, meter = rank()
    longest = max(
        len(question) + len(text)
        for question, batch in zip(meter.question_texts, meter.candidates, strict=True)
        for text in batch
    )
    assert meter.ahead == Lengths(17, longest)


def test_what_does_not_fit_is_refused_with_a_remedy() -> None:
    with pytest.raises(UserError, match="choose a shorter split, keep less with --tokens or use"):
        write(FakeMeter(max_context=100))
    room = write()[1].ahead
    assert room is not None
    write(FakeMeter(max_context=room.context + room.question))


@pytest.mark.parametrize("exact", [True, False])
def test_the_option_with_the_lowest_perplexity_per_token_is_the_prediction(exact: bool) -> None:
    record, meter = rank(FakeMeter(exact_streaming=exact))
    assert len(meter.question_texts) == (len(OWN.questions) if exact else 0)
    for n, (entry, texts) in enumerate(zip(record["questions"], meter.candidates, strict=True)):
        before = "\n\n" + prompt("document-question").format(text=f"What is {n}?")
        assert texts == [f"{'' if exact else before} {option}" for option in OWN.questions[n].options]
        assert not exact or meter.question_texts[n] == before
        assert (entry["prediction"], entry["answer"], entry["accuracy"]) == (1, 0, 0.0)
        assert entry["nats"] == pytest.approx([2.0, 1.0, 2.0])
        assert entry["nats_per_token"] == pytest.approx(2.0)
    assert RankProtocol(PROMPTS, Options()).quality(record) == 0.0


def test_ties_go_to_the_first_option_and_the_right_one_is_known_by_its_text() -> None:
    twice = Question("q", "?", ("b",), ("a", "b", "b"))
    reading = Reading("r", "r", "x", (twice,))
    record = RankProtocol(PROMPTS, Options()).evaluate(FakeMeter(), reading, reading)  # type: ignore[arg-type]
    assert (record["questions"][0]["prediction"], record["questions"][0]["answer"]) == (0, 1)


def test_details_and_the_distance_of_the_answer_are_stored() -> None:
    placed = Question("q", "?", ("a",), details={"reach": "1k"}, place=6)
    reading = Reading("r", "r", "It is told.", (placed,))
    record = AnswerProtocol(PROMPTS, Options(), EXACT).evaluate(FakeMeter(), reading, reading)  # type: ignore[arg-type]
    assert record["questions"][0].items() >= {"reach": "1k", "distance": 5}.items()


@settings(max_examples=10, deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from("xy"), st.integers(0, 1)), min_size=1, max_size=4), min_size=1, max_size=6
    )
)
def test_metrics_are_means_over_questions_and_break_down(groups: list[list[tuple[str, int]]]) -> None:
    records = [
        {"id": str(n), "work": str(n), "questions": [{"kind": kind, "m": value, "other": 1.0} for kind, value in group]}
        for n, group in enumerate(groups)
    ]
    flat = [pair for group in groups for pair in group]
    metrics = means(records, ("m", "other"), "kind")
    assert next(iter(metrics)) == "m"
    assert metrics["m"].value == pytest.approx(sum(value for _, value in flat) / len(flat))
    assert (metrics["other"].value, metrics["m"].n) == (1.0, len(flat))
    for kind in {kind for kind, _ in flat}:
        values = [value for key, value in flat if key == kind]
        assert metrics[f"m_{kind}"].value == pytest.approx(sum(values) / len(values))
    assert (metrics["m"].low is None) == (len(groups) == 1)


def test_document_questions_are_scored_against_all_answers_and_the_shortest() -> None:
    protocol = document_protocol(Options())
    reading = Reading("r", "r", "x", (Question("q", "?", ("in the park", "Rome")),))
    record = protocol.evaluate(FakeMeter(" In park."), reading, reading)  # type: ignore[arg-type]
    metrics = protocol.summarise([record])
    values = {name: metric.value for name, metric in metrics.items()}
    assert values == {"f1": 1.0, "exact_match": 1.0, "f1_shortest": 0.0, "exact_match_shortest": 0.0}
    assert protocol.quality(record) == 1.0
    assert protocol.prompt == "\n\n".join(prompt(name) for name in PROMPTS)


@pytest.fixture(scope="module")
def tiny() -> Any:
    return backbones.load("tiny-llama", device="cpu")


def metered(method: Any) -> Meter:
    return Meter(method, Ledger("cpu", counting=False))


@pytest.mark.parametrize("build", [Full, lambda backbone: Window(backbone, WindowConfig(N=64))])
def test_answers_do_not_depend_on_other_questions(tiny: Any, build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    protocol = AnswerProtocol(SHORT, Options(), EXACT, max_new_tokens=6)
    with torch.no_grad():
        together = protocol.evaluate(metered(build(tiny)), OWN, OTHER)
        monkeypatch.setattr(answers, "AT_ONCE", 1)
        single = protocol.evaluate(metered(build(tiny)), OWN, OTHER)
    assert together == single


@pytest.mark.parametrize("build", [Full, ClosedBook, lambda backbone: Window(backbone, WindowConfig(N=16))])
def test_ranking_equals_scoring_the_whole_text(tiny: Any, build: Any) -> None:
    method, protocol = build(tiny), RankProtocol(SHORT, Options())
    with torch.no_grad():
        meter = metered(method)
        state = contextualize(meter, tiny.encode(OWN.context.rstrip()), Lengths(17))
        for question in OWN.questions:
            (before, *options) = protocol._sequences(meter, OWN, question, True)
            (entry,) = protocol.answer(meter, state, [question], [[before, *options]])
            whole_NM = method.score(state, [before + option for option in options])[0, :, len(before) :]
            assert entry["nats"] == pytest.approx(
                [-float(row[: len(option)].mean()) for row, option in zip(whole_NM, options, strict=True)], abs=1e-4
            )


def test_the_ranked_text_is_the_exported_text(tiny: Any) -> None:
    protocol, method = RankProtocol(SHORT, Options()), Full(tiny)
    with torch.no_grad():
        record = protocol.evaluate(metered(method), OWN, OTHER)
        for entry, question in zip(record["questions"], OWN.questions, strict=True):
            before = f"{OWN.context.rstrip()}\n\n{prompt('recall-question').format(text=question.text)}"
            assert protocol.whole(OWN, question) == before
            assert protocol.choices(question) == [f" {option}" for option in question.options]
            for option, nats in zip(question.options, entry["nats"], strict=True):
                tokens = torch.tensor([tiny.encode(f"{before} {option}")])
                _, logprobs = method.read(method.start(), tokens)
                assert logprobs is not None
                assert nats == pytest.approx(-float(logprobs[0, len(tiny.encode(before)) :].mean()), abs=1e-4)


def test_without_a_context_the_whole_text_is_the_question_alone() -> None:
    protocol = AnswerProtocol(PROMPTS, Options(), EXACT)
    empty = Reading("empty", "empty", " \n", OWN.questions)
    assert protocol.whole(empty, OWN.questions[0]) == prompt("question").format(text=OWN.questions[0].text)


def test_a_question_is_read_once_for_all_its_options(tiny: Any) -> None:
    protocol = RankProtocol(SHORT, Options())
    for build, times in ((Full, 1), (ClosedBook, 3)):
        meter = metered(build(tiny))
        with torch.no_grad():
            protocol.evaluate(meter, OWN, OTHER)
        sequences = [protocol._sequences(meter, OWN, question, True) for question in OWN.questions]
        expected = sum(times * len(before) + sum(map(len, options)) for before, *options in sequences)
        assert meter.take()["cost"]["query"]["tokens"] == expected


def test_the_ledger_counts_the_context_once(tiny: Any) -> None:
    meter = metered(Full(tiny))
    with torch.no_grad():
        RankProtocol(SHORT, Options()).evaluate(meter, OWN, OTHER)
    costs = meter.take()
    assert costs["cost"]["contextualize"]["tokens"] == len(tiny.encode(OWN.context.rstrip()))
    assert costs["state"]["tokens"] == costs["cost"]["contextualize"]["tokens"]


@given(st.lists(st.integers(0, 9), max_size=5), st.none() | st.integers(0, 7))
def test_the_last_tokens_are_kept(tokens: list[int], count: int | None) -> None:
    kept = answers.last(tokens, count)
    assert tokens[len(tokens) - len(kept) :] == kept
    assert len(kept) == (len(tokens) if count is None else min(count, len(tokens)))


def test_line_ends_and_special_tokens_stop(tiny: Any) -> None:
    stop = stop_tokens(tiny)
    assert tiny.encode("\n")[-1] in stop
    assert set(tiny.tokenizer.all_special_ids) <= set(stop)
    assert all(not tiny.decode([token]).strip() or token in tiny.tokenizer.all_special_ids for token in stop)


def test_perplexity_of_options_is_finite_for_every_option(tiny: Any) -> None:
    with torch.no_grad():
        record = RankProtocol(SHORT, Options(context="none")).evaluate(metered(Full(tiny)), OWN, OTHER)
    assert all(math.isfinite(nats) for entry in record["questions"] for nats in entry["nats"])
