from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import contextlab
from contextlab import registry
from contextlab.benchmarks.examples import Block, Labelled
from contextlab.benchmarks.protocols.demonstrations import Draws, IclProtocol, Similar
from contextlab.benchmarks.task import Options
from contextlab.benchmarks.tasks import icl
from contextlab.benchmarks.tasks.icl import template
from contextlab.errors import UserError
from contextlab.harness.stored import Result
from contextlab.method import Capabilities, Lengths

TRAIN = tuple(Labelled(f"train/{n}", f"film {n} is {'good' if n % 2 else 'bad'}", n % 2) for n in range(30))
NEWS = tuple(Labelled(f"train/{n}", f"news {n}", n % 4) for n in range(30))
BLOCK = Block("test/0", (Labelled("test/4", "a {odd} film", 1), Labelled("test/7", "film 3 is good", 0)), TRAIN)
ONE = Block("test/1", BLOCK.items[:1], TRAIN)


class FakeMeter:
    """A byte model: log-probability -1 for each byte, or -0.5 in texts that it prefers; it writes `says`."""

    def __init__(self, favoured: str = "", says: str = "", **capabilities: Any) -> None:
        self.favoured, self.says = favoured, says
        self.backbone = SimpleNamespace(
            name="toy",
            encode=lambda text: list(text.encode()),
            decode=lambda tokens: bytes(tokens).decode(),
            with_bos=list,
        )
        self.capabilities = Capabilities(**capabilities)
        self.method = self
        self.contexts: list[str] = []
        self.candidates: list[list[str]] = []
        self.aheads: list[Lengths] = []
        self.kept = 0

    def start(self, batch_size: int = 1, *, ahead: Lengths) -> Any:
        self.aheads.append(ahead)
        return SimpleNamespace(length_B=torch.zeros(1, dtype=torch.int64), device=torch.device("cpu"))

    def read(self, phase: str, state: Any, tokens_BT: Any, *, logprobs: bool) -> tuple[Any, None]:
        assert (phase, logprobs) == ("contextualize", False)
        self.contexts.append(bytes(tokens_BT[0].tolist()).decode())
        return state, None

    def keep(self, state: Any) -> None:
        self.kept += 1

    def score(self, phase: str, state: Any, candidates: Sequence[Sequence[int]]) -> torch.Tensor:
        assert phase == "query"
        self.candidates.append([bytes(candidate).decode() for candidate in candidates])
        scores = torch.zeros(1, len(candidates), max(map(len, candidates)))
        for row, text in enumerate(self.candidates[-1]):
            scores[0, row, : len(candidates[row])] = -0.5 if self.favoured and self.favoured in text else -1.0
        return scores

    def generate(self, phase: str, state: Any, prompts: Any, *, max_new_tokens: int) -> list[list[int]]:
        assert (phase, max_new_tokens) == ("query", 1)
        self.candidates += [[bytes(prompt).decode()] for prompt in prompts]
        return [list(self.says.encode()) for _ in prompts]


def ask(
    split: str, block: Block = BLOCK, meter: FakeMeter | None = None, context: Any = "own", seed: int = 0
) -> tuple[dict[str, Any], FakeMeter, IclProtocol]:
    task, name = registry.task_and_split("icl", split)
    config: Any = task.config
    protocol = IclProtocol(
        template(name, config), Draws(config.k, config.memory, config.choose), Options(context=context)
    )
    meter = meter or FakeMeter()
    random.seed(seed)
    return protocol.evaluate(meter, block, block), meter, protocol  # type: ignore[arg-type]


def shown(record: dict[str, Any]) -> list[Labelled]:
    by_id = {demonstration.id: demonstration for demonstration in TRAIN}
    return [by_id[name] for name in record["demonstrations"][0]]


@pytest.mark.parametrize("split", ["sst2(k=3,scoring=label)", "sst2(k=3,template=evalm)", "sst2(k=3)"])
def test_demonstrations_are_read_once_for_all_texts(split: str) -> None:
    record, meter, _ = ask(split)
    assert len(meter.contexts) == meter.kept == 1
    assert len(meter.candidates) == len(record["answers"]) == 2
    assert record["context_tokens"] == len(meter.contexts[0])
    longest = max(len(text) for candidates in meter.candidates for text in candidates)
    assert meter.aheads == [Lengths(len(meter.contexts[0]), longest)]


def test_the_newline_behind_the_last_demonstration_is_read_with_the_text() -> None:
    record, meter, _ = ask("sst2(k=2,scoring=label)", ONE)
    words = ("negative", "positive")
    texts = [f"Review: {demonstration.text} Sentiment: {words[demonstration.label]}" for demonstration in shown(record)]
    assert meter.contexts == ["\n".join(texts)]
    assert meter.candidates == [[f"\nReview: a {{odd}} film Sentiment: {word}" for word in words]]


def test_prompts_of_evalm_hold_the_label_in_front() -> None:
    record, meter, _ = ask("sst2(k=1,template=evalm)", ONE)
    (demonstration,) = shown(record)
    assert meter.contexts == [f"{('Negative', 'Positive')[demonstration.label]} Movie Review: {demonstration.text}"]
    assert meter.candidates == [[f"\n{word} Movie Review: a {{odd}} film" for word in ("Negative", "Positive")]]


@pytest.mark.parametrize("split", ["sst2(scoring=label)", "sst2(template=evalm)", "sst2(template=hso)"])
def test_context_and_candidate_are_the_text_that_is_meant(split: str) -> None:
    _, meter, protocol = ask(f"{split},k=3" if ":" in split else split)
    random.seed(0)
    ((demonstrations, items),) = protocol.draw(BLOCK)
    before = protocol.context(demonstrations)
    for item, candidates in zip(items, meter.candidates, strict=True):
        expected = [before + protocol.question(item) + choice for choice in protocol.choices(item)]
        assert [meter.contexts[0] + text for text in candidates] == expected


def test_only_the_label_is_scored_or_all_of_the_template() -> None:
    def nats(split: str) -> list[float]:
        return list(ask(split, ONE)[0]["answers"][0]["nats"])

    # Every byte costs 1: " Negative" and " Positive" have equal length; for SST-5 LongMem's shortest word is predicted.
    assert nats("sst2(template=hso)") == pytest.approx([math.log(2)] * 2)
    words = torch.tensor([float(len(word) + 1) for word in ("terrible", "bad", "okay", "good", "great")])
    expected = (-(-words).log_softmax(0)).tolist()
    assert nats("sst5(scoring=label)") == pytest.approx(expected, rel=1e-5)
    assert nats("sst5(scoring=template)") == pytest.approx(expected, rel=1e-5)


def test_the_whole_template_includes_the_text_after_the_label() -> None:
    favoured = FakeMeter("Positive")
    record, meter, _ = ask("sst2(template=evalm)", ONE, favoured)
    difference = 0.5 * len(meter.candidates[0][1].removeprefix("\n")) + 0.5
    assert record["answers"][0]["nats"][0] - record["answers"][0]["nats"][1] == pytest.approx(difference, rel=1e-4)
    assert record["answers"][0]["correct"]


def test_the_words_of_a_class_add_up() -> None:
    block = Block("test/0", (Labelled("test/0", "chips", 3),), NEWS)
    answer = ask("agnews(template=hso,k=4)", block)[0]["answers"][0]
    weights = torch.tensor([math.exp(-6), math.exp(-7), math.exp(-9), math.exp(-11) + math.exp(-8)]).double()
    assert answer["nats"] == pytest.approx((-(weights / weights.sum()).log()).tolist(), rel=1e-4)


@pytest.mark.parametrize(
    ("says", "correct"), [(" positive", True), ("pos", True), (" p\n", True), (" ", False), ("positively", False)]
)
def test_one_written_token_is_right_when_it_begins_the_label(says: str, correct: bool) -> None:
    record, meter, protocol = ask("sst2(k=2)", ONE, FakeMeter(says=says))
    assert record["answers"][0]["correct"] is correct
    assert meter.candidates == [["\nReview: a {odd} film Sentiment:"]]
    assert list(protocol.summarise([record])) == ["accuracy"]


@pytest.mark.parametrize(("says", "correct"), [(" Technology", True), (" Sci", True), (" Sports", False)])
def test_a_written_token_may_begin_any_word_of_the_class(says: str, correct: bool) -> None:
    block = Block("test/0", (Labelled("test/0", "chips", 3),), NEWS)
    record, _, _ = ask("agnews(template=hso,scoring=greedy,k=4)", block, FakeMeter(says=says))
    assert record["answers"][0]["correct"] is correct


def test_fewer_demonstrations_are_the_first_of_more_and_seeds_differ() -> None:
    few, many, other = (ask(split, seed=s)[0] for split, s in (("sst2(k=3)", 0), ("sst2(k=9)", 0), ("sst2(k=9)", 1)))
    assert many["demonstrations"][0][:3] == few["demonstrations"][0]
    assert len(set(many["demonstrations"][0])) == 9
    assert other["demonstrations"] != many["demonstrations"]


def test_demonstrations_in_memory_come_first_and_change_nothing_of_the_others() -> None:
    plain, _, _ = ask("sst2(k=3)")
    record, meter, _ = ask("sst2(k=3,memory=20)")
    (demonstrations,) = record["demonstrations"]
    assert demonstrations[20:] == plain["demonstrations"][0]
    assert len(set(demonstrations[:20])) == 20
    assert demonstrations[:3] != demonstrations[20:]
    assert meter.contexts[0].count("Review: ") == 23
    alone, _, _ = ask("sst2(k=0,memory=20)")
    assert alone["demonstrations"][0] == demonstrations[:20]


def test_texts_to_classify_are_no_demonstrations() -> None:
    record, _, _ = ask("sst2(k=29)")
    assert sorted(record["demonstrations"][0]) == sorted(
        demonstration.id for demonstration in TRAIN if demonstration.text != "film 3 is good"
    )


def test_the_most_similar_stand_right_before_the_text() -> None:
    train = tuple(Labelled(f"train/{n}", text, 0) for n, text in enumerate(["odd film", "plot", "a {odd} film", "odd"]))
    block = Block("test/0", BLOCK.items[:1] * 2, train)
    record, meter, _ = ask("sst2(k=2,choose=topk,scoring=label)", block)
    assert record["demonstrations"] == [["train/3", "train/0"]] * 2
    assert len(meter.contexts) == 2
    assert meter.contexts[0] == "Review: odd Sentiment: negative\nReview: odd film Sentiment: negative"


def test_controls_leave_the_demonstrations_out_or_turn_their_labels() -> None:
    none, meter, _ = ask(
        "agnews(template=hso)", Block("test/0", (Labelled("test/0", "chips", 3),), NEWS), context="none"
    )
    assert none["demonstrations"] == [[]]
    assert meter.contexts == [
        "Classify the news articles into the categories of World, Sports, Business, and Technology."
    ]
    assert ask("sst2", context="none")[1].contexts == []
    assert ask("sst2(k=0)")[1].contexts == []
    own, wrong = (ask("sst2(k=4,scoring=label)", ONE, context=context) for context in ("own", "wrong"))
    assert own[0]["demonstrations"] == wrong[0]["demonstrations"]
    turned = own[1].contexts[0].replace(" negative", " POSITIVE").replace(" positive", " negative").lower()
    assert wrong[1].contexts[0].lower() == turned


def test_a_method_that_cannot_read_it_as_one_is_refused() -> None:
    with pytest.raises(UserError, match="lower k or use"):
        ask("sst2", meter=FakeMeter(max_context=100))


def test_accuracy_is_over_texts_and_blocks_are_clusters() -> None:
    record, _, protocol = ask("sst2(k=2,template=hso)")
    assert [answer["correct"] for answer in record["answers"]] == [False, True]
    assert protocol.quality(record) == 0.5
    summary = protocol.summarise([record])
    assert list(summary) == ["accuracy", "macro_f1", "nats_per_label"]
    assert (summary["accuracy"].value, summary["accuracy"].n) == (0.5, 2)
    assert {metric.low for metric in summary.values()} == {None}
    right = {**record, "id": "test/1", "answers": [record["answers"][1]]}
    of_two = protocol.summarise([record, right])["accuracy"]
    assert (of_two.value, of_two.n) == (pytest.approx(2 / 3), 3)
    assert of_two.low is not None
    assert of_two.low < 0.5


@pytest.mark.parametrize("demonstrations", [[["a"], ["b"]], [[]]])
def test_texts_without_common_demonstrations_are_clusters_of_their_own(demonstrations: list[list[str]]) -> None:
    record, _, protocol = ask("sst2(k=2,template=hso)")
    parts = protocol.parts({**record, "demonstrations": demonstrations})["accuracy"]
    assert [part.cluster for part in parts] == [answer["id"] for answer in record["answers"]]
    assert {part.cluster for part in protocol.parts(record)["accuracy"]} == {record["id"]}


def test_every_method_and_every_resumed_run_gets_the_same_demonstrations(tmp_path: Path) -> None:
    task = f"{icl.__file__}:ICL"

    def run(folder: str, methods: str, limit: int, seed: int = 0) -> list[Result]:
        options: dict[str, Any] = {"split": "sst2(k=2,n=3,template=hso)", "backbone": "tiny-llama", "device": "cpu"}
        return contextlab.bench(methods, task, limit=limit, seed=seed, out=tmp_path / folder, **options).runs

    def drawn(folder: str, field: str = "demonstrations") -> list[list[Any]]:
        files = sorted((tmp_path / folder).rglob("*.jsonl"))
        return [[json.loads(line)["record"][field] for line in file.open()] for file in files]

    result = run("once", "window,sliding", 2)[0]
    assert (result.metrics["accuracy"].n, result.split) == (6, "sst2(k=2,n=3,template=hso)")
    # The demonstrations are counted once for three texts.
    assert result.cost.contextualize is not None
    assert result.cost.contextualize.tokens == round(sum(drawn("once", "context_tokens")[0]) / 2)
    run("resumed", "window", 1)
    run("resumed", "window", 2)
    run("seeded", "window", 2, seed=1)
    first, second = drawn("once")
    assert first == second == drawn("resumed")[0]
    assert first[0] != first[1]
    assert drawn("seeded")[0] != first


words = st.sampled_from(["the", "cat", "sat", "on", "a", "mat", "THE", "Cat,", "dog's", "don't", "dog", "é,é", "été"])
texts = st.lists(words, min_size=1, max_size=8).map(" ".join)


@settings(deadline=None, max_examples=60)
@given(st.lists(texts, min_size=1, max_size=8), texts)
def test_the_order_is_that_of_scikit_learns_vectors(indexed: list[str], text: str) -> None:
    sklearn = pytest.importorskip("sklearn.feature_extraction.text")
    vectorizer = sklearn.TfidfVectorizer()
    try:
        vectors = vectorizer.fit_transform(indexed)
    except ValueError:  # no text has a word
        assert Similar(indexed).ranked(text) == list(range(len(indexed)))
        return
    cosines = (vectors @ vectorizer.transform([text]).T).toarray()[:, 0]
    expected = sorted(range(len(indexed)), key=lambda number: -round(float(cosines[number]), 9))
    assert [round(float(cosines[n]), 9) for n in Similar(indexed).ranked(text)] == [
        round(float(cosines[n]), 9) for n in expected
    ]


@settings(deadline=None)
@given(st.lists(texts, max_size=8), texts)
def test_every_text_is_ranked_once(indexed: list[str], text: str) -> None:
    assert sorted(Similar(indexed).ranked(text)) == list(range(len(indexed)))


def test_the_text_itself_comes_first_and_strangers_keep_their_order() -> None:
    similar = Similar(["one two", "three four", "two three four", "five six"])
    assert similar.ranked("Four, three!")[:2] == [1, 2]
    assert similar.ranked("seven") == [0, 1, 2, 3]


def test_rare_words_weigh_more() -> None:
    assert Similar(["film good", "film bad", "film odd", "odd plot"]).ranked("bad film")[0] == 1
    assert Similar(["common rare", "common", "common other"]).ranked("rare")[0] == 0
