from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contextlab.benchmarks.examples import Item, Labelled
from contextlab.benchmarks.protocols.label_words import LabelProtocol
from contextlab.benchmarks.task import Options
from contextlab.benchmarks.tasks.fewshot import SST2, AGNews
from contextlab.errors import UserError
from contextlab.method import Capabilities, Lengths

NEWS = AGNews.form
REVIEWS = SST2.form
POOL = tuple(Labelled(f"train/{n}", f"text {n} of {n % 4}", n % 4) for n in range(40))
ITEM = Item("test/0", "a text {odd}", 2, POOL)
REVIEW = Item("test/0", "fine .", 1, tuple(Labelled(f"train/{n}", f"text {n}", n % 2) for n in range(20)))


class FakeMeter:
    """A byte model with the same log-probability for every byte of a label."""

    def __init__(self, per_byte: dict[str, float] | None = None, **capabilities: Any) -> None:
        self.per_byte = per_byte or {}
        self.backbone = SimpleNamespace(name="toy", encode=lambda text: list(text.encode()), with_bos=list)
        self.capabilities = Capabilities(**capabilities)
        self.method = self
        self.calls: list[tuple[Any, ...]] = []
        self.ahead: Lengths | None = None

    def start(self, batch_size: int = 1, *, ahead: Lengths | None = None) -> Any:
        self.ahead = ahead
        return SimpleNamespace(length_B=torch.zeros(1, dtype=torch.int64), device=torch.device("cpu"))

    def read(self, phase: str, state: Any, tokens_BT: Any, *, logprobs: bool) -> tuple[Any, None]:
        self.calls.append(("read", phase, bytes(tokens_BT[0].tolist()).decode(), logprobs))
        return state, None

    def keep(self, state: Any) -> None:
        self.calls.append(("keep",))

    def score(self, phase: str, state: Any, candidates: Sequence[Sequence[int]]) -> torch.Tensor:
        labels = [bytes(candidate).decode() for candidate in candidates]
        self.calls.append(("score", phase, labels))
        scores = torch.zeros(1, len(labels), max(map(len, labels)))
        for row, label in enumerate(labels):
            scores[0, row, : len(label)] = self.per_byte.get(label, -2.0)
        return scores

    @property
    def prompt(self) -> str:
        return str(self.calls[0][2])


def ask(
    n: int = 4, item: Item = ITEM, seed: int = 0, context: Any = "own", meter: FakeMeter | None = None
) -> tuple[dict[str, Any], FakeMeter]:
    form = NEWS if item.train is POOL else REVIEWS
    meter = meter or FakeMeter()
    random.seed(seed)
    return LabelProtocol(form, n, Options(context=context)).evaluate(meter, item, item), meter  # type: ignore[arg-type]


def test_a_prompt_is_read_once_and_the_words_of_all_classes_are_scored_after_it() -> None:
    record, meter = ask()
    assert meter.calls == [
        ("read", "contextualize", meter.prompt, False),
        ("keep",),
        ("score", "query", [" World", " Sports", " Business", " Technology", " Science"]),
    ]
    assert record["context_tokens"] == len(meter.prompt)


def shown(record: dict[str, Any], item: Item = ITEM) -> list[Labelled]:
    by_id = {demonstration.id: demonstration for demonstration in item.train}
    return [by_id[name] for name in record["demonstrations"]]


def test_the_review_prompt_of_the_paper() -> None:
    record, meter = ask(2, REVIEW)
    first, second = shown(record, REVIEW)
    names = ("Negative", "Positive")
    assert meter.prompt == (
        f"Review: {first.text}\nSentiment: {names[first.label]}\n\n"
        f"Review: {second.text}\nSentiment: {names[second.label]}\n\n"
        "Review: fine .\nSentiment:"
    )


def test_the_news_prompt_of_the_paper() -> None:
    record, meter = ask(2)
    first, second = shown(record)
    names = ("World", "Sports", "Business", "Technology")
    assert meter.prompt == (
        "Classify the news articles into the categories of World, Sports, Business, and Technology.\n\n"
        f"Article: {first.text}\nAnswer: {names[first.label]}\n\n"
        f"Article: {second.text}\nAnswer: {names[second.label]}\n\n"
        "Article: a text {odd}\nAnswer:"
    )


def test_without_context_there_are_no_demonstrations() -> None:
    record, meter = ask(4, context="none")
    assert meter.prompt == NEWS.instruction + "Article: a text {odd}\nAnswer:"
    assert record["demonstrations"] == []
    assert ask(2, REVIEW, context="none")[1].prompt == "Review: fine .\nSentiment:"


@pytest.mark.parametrize("item", [ITEM, REVIEW])
def test_a_wrong_context_has_the_same_texts_with_no_label_right(item: Item) -> None:
    (own, right), (wrong, turned) = (ask(8, item, context=context) for context in ("own", "wrong"))
    assert own["demonstrations"] == wrong["demonstrations"]
    lines = [meter.prompt.split("\n") for meter in (right, turned)]
    labels = [[line.split(": ")[1] for line in part if ": " in line][1::2] for part in lines]
    assert len(labels[0]) == 8
    assert all(first != second for first, second in zip(*labels, strict=True))
    assert Counter(labels[0]) == Counter(labels[1])


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([2, 4, 6, 8]), st.sampled_from([ITEM, REVIEW]))
def test_demonstrations_are_distinct_and_as_even_over_the_classes_as_can_be(seed: int, n: int, item: Item) -> None:
    demonstrations = shown(ask(n, item, seed)[0], item)
    counts = Counter(demonstration.label for demonstration in demonstrations)
    classes = 4 if item is ITEM else 2
    assert len(set(demonstrations)) == n
    assert sorted((counts[c] for c in range(classes)), reverse=True) == [
        n // classes + (c < n % classes) for c in range(classes)
    ]


def test_every_text_every_class_and_every_order_is_drawn() -> None:
    drawn = [shown(ask(2, seed=seed)[0]) for seed in range(400)]
    assert {demonstration.id for pair in drawn for demonstration in pair} == {
        demonstration.id for demonstration in POOL
    }
    pairs = Counter((first.label, second.label) for first, second in drawn)
    assert len(pairs) == 12
    assert max(pairs.values()) < 60
    orders = Counter(
        tuple(demonstration.label for demonstration in shown(ask(2, REVIEW, seed)[0], REVIEW)) for seed in range(200)
    )
    assert set(orders) == {(0, 1), (1, 0)}
    assert min(orders.values()) > 70


def test_the_draw_follows_from_the_random_state_and_the_number_of_demonstrations() -> None:
    first = ask(4, seed=3)[0]["demonstrations"]
    assert first == ask(4, seed=3, meter=FakeMeter(segment=7))[0]["demonstrations"]
    assert first != ask(4, seed=4)[0]["demonstrations"]
    assert first != [name for name in ask(8, seed=3)[0]["demonstrations"] if name in first]


def test_the_draw_is_the_same_in_every_version() -> None:
    assert ask(4, seed=0)[0]["demonstrations"] == ["train/0", "train/25", "train/22", "train/3"]


def test_long_texts_and_the_item_itself_are_no_demonstrations() -> None:
    texts = ["x" * 35, "y" * 36, "fine .", "é" * 18]
    pool = tuple(Labelled(f"train/{n}", text, n // 4) for n, text in enumerate(texts * 2))
    for seed in range(20):
        record, _ = ask(2, Item("test/0", "fine .", 1, pool), seed)
        assert {demonstration.text for demonstration in shown(record, Item("", "", 0, pool))} == {"x" * 35}


def test_too_few_short_texts_are_an_error_that_says_how_many() -> None:
    item = Item("test/0", "fine .", 1, REVIEW.train[:5])
    with pytest.raises(UserError, match=r"^2 of 3 training texts 'Positive' have at most 35 tokens on toy: choose"):
        ask(6, item)
    assert len(ask(4, item)[0]["demonstrations"]) == 4


def test_words_of_a_class_add_up_and_long_words_count_whole() -> None:
    per_byte = {" World": -0.5, " Sports": -0.4, " Business": -0.3, " Technology": -0.27, " Science": -0.36}
    record, _ = ask(meter=FakeMeter(per_byte))
    world, sports, business = math.exp(-0.5 * 6), math.exp(-0.4 * 7), math.exp(-0.3 * 9)
    technology = math.exp(-0.27 * 11) + math.exp(-0.36 * 8)
    mass = world + sports + business + technology
    expected = [-math.log(part / mass) for part in (world, sports, business, technology)]
    assert record["nats"] == pytest.approx(expected, rel=1e-6)
    assert record["label_mass"] == pytest.approx(mass, rel=1e-6)
    # Of the single words Business is the most probable.
    assert (record["prediction"], record["answer"], record["correct"]) == (3, 2, False)
    assert sum(math.exp(-nats) for nats in record["nats"]) == pytest.approx(1)


def test_small_probabilities_are_not_lost() -> None:
    record, _ = ask(2, REVIEW, meter=FakeMeter({" Negative": -200.0, " Positive": -199.9}))
    assert (record["prediction"], record["correct"]) == (1, True)
    assert record["nats"][0] - record["nats"][1] == pytest.approx(0.9, rel=1e-3)


def test_ahead_holds_the_lengths_of_the_prompt_and_of_the_longest_label() -> None:
    record, meter = ask()
    assert meter.ahead == Lengths(record["context_tokens"], len(" Technology"))


def test_a_prompt_longer_than_the_method_reads_is_an_error() -> None:
    length = ask()[0]["context_tokens"] + len(" Technology")
    with pytest.raises(UserError, match="choose a split with fewer demonstrations"):
        ask(meter=FakeMeter(max_context=length - 1))
    ask(meter=FakeMeter(max_context=length))


def record(answer: int, prediction: int, nats: float = 1.0) -> dict[str, Any]:
    correct = answer == prediction
    return {"id": f"{nats}", "answer": answer, "prediction": prediction, "correct": correct, "nats": [nats] * 4}


def test_metrics_over_records() -> None:
    protocol = LabelProtocol(NEWS, 4, Options())
    records = [record(0, 0, 0.5), record(0, 1, 1.5), record(1, 1, 0.1), record(2, 1, 3.9)]
    metrics = protocol.summarise(records)
    assert list(metrics) == ["accuracy", "macro_f1", "nats_per_label"]
    assert metrics["accuracy"].value == 0.5
    assert metrics["nats_per_label"].value == pytest.approx(1.5)
    assert metrics["macro_f1"].value == pytest.approx((2 / 3 + 2 / 4 + 0) / 3)
    assert {metric.n for metric in metrics.values()} == {4}
    assert [protocol.quality(entry) for entry in records] == [1.0, 0.0, 1.0, 0.0]
