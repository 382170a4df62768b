from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contextlab import backbone as backbones
from contextlab import registry
from contextlab.accounting.ledger import Ledger, Meter
from contextlab.benchmarks.examples import Question, Reading
from contextlab.benchmarks.protocols.metaicl_upstream import UpstreamProtocol, demonstrations
from contextlab.benchmarks.task import Options
from contextlab.benchmarks.tasks.metaicl import MetaICL, MetaICLConfig
from contextlab.errors import UserError
from contextlab.method import Capabilities

END = 0
BYTES: Any = SimpleNamespace(
    name="bytes",
    tokenizer=SimpleNamespace(eos_token_id=END),
    encode=lambda text: list(text.encode()),
    decode=lambda tokens: bytes(tokens).decode(),
    with_bos=list,
)


def question(number: int, length: int, options: tuple[str, ...] = ("yes", "never")) -> Question:
    text = f"{number}".ljust(length, chr(97 + number % 26))
    return Question(f"q{number}", text, (options[number % len(options)],), options, {"item": f"{number}", "seed": 13})


def reading(identity: str, shown: list[Question], questions: list[Question]) -> Reading:
    return Reading(identity, identity, "unused", tuple(questions), tuple(shown))


class Recorder:
    """A meter that stores the texts that are read, and prefers the longest option."""

    def __init__(self) -> None:
        self.backbone, self.capabilities, self.method = BYTES, Capabilities(), self
        self.read_texts: list[str] = []
        self.calls: list[tuple[str, list[list[int]]]] = []

    def start(self, batch_size: int = 1, *, ahead: Any = None) -> Any:
        return SimpleNamespace(length_B=torch.zeros(1), device=torch.device("cpu"), read="")

    def read(self, phase: str, state: Any, tokens_BT: Any, *, logprobs: bool) -> Any:
        text = bytes(tokens_BT[0].tolist()).decode()
        if phase == "contextualize":
            self.read_texts.append(text)
        return SimpleNamespace(length_B=torch.zeros(1), device=torch.device("cpu"), read=state.read + text), None

    def keep(self, state: Any) -> None:
        pass

    def score(self, phase: str, state: Any, candidates: list[list[int]]) -> Any:
        self.calls.append((state.read, candidates))
        scores = torch.zeros(1, len(candidates), max(map(len, candidates)))
        for row, candidate in enumerate(candidates):
            scores[0, row, : len(candidate)] = -1.0 / len(candidate)
        return scores


def evaluate(own: Reading, other: Reading, **options: Any) -> tuple[dict[str, Any], Recorder]:
    meter, protocol = Recorder(), UpstreamProtocol(Options(**options), summary=lambda _: {})
    return protocol.evaluate(meter, own, other), meter  # type: ignore[arg-type]


SHORT = reading("short", [question(n, 4) for n in range(3)], [question(n, 5) for n in range(3, 6)])
LONG = reading("long", [question(n, 300) for n in range(16)], [question(n, n * 40) for n in range(3, 9)])


def test_texts_are_joined_by_spaces_alone_and_options_end_the_text() -> None:
    record, meter = evaluate(SHORT, LONG)
    assert meter.read_texts == ["0aaa yes 1bbb never 2ccc yes"]
    assert [text for text, _ in meter.calls] == [f"{meter.read_texts[0]} {item.text}" for item in SHORT.questions]
    options = [[[*b" yes", END], [*b" never", END]]] * 3
    assert [candidates for _, candidates in meter.calls] == options
    assert record["context_tokens"] == record["own_context_tokens"] == len(meter.read_texts[0])
    assert [entry["item"] for entry in record["questions"]] == ["3", "4", "5"]


def test_controls() -> None:
    record, meter = evaluate(SHORT, LONG, context="none")
    assert meter.read_texts == []
    assert [text for text, _ in meter.calls] == [item.text for item in SHORT.questions]
    assert record["context_tokens"] == 0
    record, meter = evaluate(SHORT, LONG, context="wrong")
    assert len(meter.read_texts[0]) == record["own_context_tokens"] == record["context_tokens"]
    record, _ = evaluate(LONG, SHORT, context="wrong")
    assert record["context_tokens"] < record["own_context_tokens"]


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(1, 700), min_size=1, max_size=16),
    st.lists(st.integers(1, 700), min_size=1, max_size=4),
    st.lists(st.integers(1, 60), min_size=2, max_size=4),
)
def test_no_item_and_no_text_is_longer_than_upstreams(shown: list[int], items: list[int], options: list[int]) -> None:
    texts = tuple("o" * length + str(n) for n, length in enumerate(options))
    own = reading("own", [question(n, k, texts) for n, k in enumerate(shown)], [question(9, k, texts) for k in items])
    for demonstration in own.shown:
        assert len(demonstrations(BYTES, [demonstration])) <= 254
        length = len(demonstration.text) + 1 + len(demonstration.answers[0])
        assert len(demonstrations(BYTES, [demonstration])) == min(length, 254)
    whole = demonstrations(BYTES, own.shown)
    record, meter = evaluate(own, SHORT)
    longest = max(map(len, texts)) + 1
    for target, (text, candidates) in zip(own.questions, meter.calls, strict=True):
        item = f" {target.text}"[: 254 - longest]
        kept = text.removesuffix(item)
        assert bytes(whole).decode().endswith(kept)
        # One token begins the text, and each option ends with one.
        total = 1 + len(text) + max(map(len, candidates))
        assert total == min(1024, 1 + len(whole) + len(item) + longest + 1)
    assert record["context_tokens"] == max(len(text) for text in (*meter.read_texts, ""))


def test_items_that_leave_the_same_demonstrations_share_a_reading() -> None:
    assert len(evaluate(SHORT, LONG)[1].read_texts) == 1
    assert len(evaluate(LONG, SHORT)[1].read_texts) == len({min(n * 40 + 1, 248) for n in range(3, 9)})


def test_a_run_of_the_task_ranks_and_sums_up() -> None:
    tiny = backbones.load("tiny-llama", device="cpu")
    from contextlab.methods.window import Window, WindowConfig

    task = MetaICL(MetaICLConfig(upstream=True))
    protocol = task.protocol("k2")
    first, second = task.load("k2", None).examples[:2]
    with torch.no_grad():
        meter = Meter(Window(tiny, WindowConfig(N=64)), Ledger("cpu", counting=False))
        record = protocol.evaluate(meter, first, second)
    assert protocol.summarise([record])["accuracy"].n == len(record["questions"])
    assert task.load("k2", None) == MetaICL().load("k2", None)


def test_there_is_no_text_without_a_backbone() -> None:
    with pytest.raises(UserError, match="leave upstream= out"):
        MetaICL(MetaICLConfig(upstream=True)).protocol("k2").whole(SHORT, SHORT.questions[0])


def test_the_split_is_spelled_shortest() -> None:
    task, split = registry.task_and_split("metaicl", "k2(upstream=1,prompt=plain)")
    assert task.spelled(split) == "k2(upstream=true)"
    plain, split = registry.task_and_split("metaicl", "k2(upstream=false)")
    assert plain.spelled(split) == "k2"
    assert task.protocol("k2").prompt != plain.protocol("k2").prompt


@pytest.mark.parametrize("shots", [1, 16])
def test_demonstrations_are_those_of_the_text(shots: int) -> None:
    for example in MetaICL().load(f"k{shots}", None).examples[:2]:
        text = "\n\n".join(
            f"Input: {demonstration.text}\nOutput: {demonstration.answers[0]}" for demonstration in example.shown
        )
        assert text == example.context
        assert len(example.shown) == shots
