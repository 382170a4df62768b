from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import contextlab
from contextlab.backbone import load
from contextlab.benchmarks.examples import Question, Reading
from contextlab.benchmarks.tasks import many_label
from contextlab.benchmarks.tasks.many_label import ManyLabel, ManyLabelConfig, balanced, by_label, rounds
from contextlab.errors import UserError

ROWS = st.lists(st.tuples(st.text(max_size=3), st.sampled_from("abcdef")), min_size=1, max_size=40, unique=True)
# By set: training texts, texts to classify, and labels of the data folder.
KNOWN = {"trec_coarse": (2726, 250, 6), "banking77": (5002, 1540, 77), "clinc150": (7550, 1550, 151)}
KNOWN["nlu"] = (4834, 674, 64)


pytestmark = pytest.mark.usefixtures("no_data")


def readings(data: Path | None = None, split: str = "banking77", **settings: Any) -> list[Reading]:
    return list(ManyLabel(ManyLabelConfig(**settings)).load(split, data).examples)


def shown(reading: Reading) -> list[tuple[str, str]]:
    """Text and number of every demonstration."""
    items = [item.rpartition("\nlabel: ") for item in reading.context.split("\n\n")]
    return [(text, number) for text, _, number in items]


@given(ROWS, st.integers())
def test_every_round_has_every_label_once_and_texts_of_a_label_return_when_all_have_occurred(
    rows: list[many_label.Row], seed: int
) -> None:
    labels = {label for _, label in rows}
    endless = rounds(by_label(rows), random.Random(seed))
    drawn = [[next(endless) for _ in labels] for _ in range(len(rows) * 2)]
    assert all({label for _, label in demonstrations} == labels for demonstrations in drawn)
    for label in labels:
        own = {row for row in rows if row[1] == label}
        texts = [row for demonstrations in drawn for row in demonstrations if row[1] == label]
        parts = [texts[start : start + len(own)] for start in range(0, len(texts), len(own))]
        assert all(set(part) == own for part in parts if len(part) == len(own))


@given(ROWS, st.integers())
def test_balanced_rows_are_all_rows_and_no_label_is_ahead_of_one_that_has_more(
    rows: list[many_label.Row], seed: int
) -> None:
    mixed = balanced(by_label(rows), random.Random(seed))
    assert sorted(mixed) == sorted(rows)
    total = Counter(label for _, label in rows)
    for size in range(len(rows)):
        counts = Counter(label for _, label in mixed[:size])
        left = [label for label in total if counts[label] < total[label]]
        assert all(counts[other] <= counts[label] + 1 for label in left for other in total)


def test_a_label_has_one_number_in_a_draw_and_another_in_the_next() -> None:
    mappings = []
    for reading in readings(tokens=2000):
        numbers = {text.split()[0]: number for text, number in shown(reading)}
        assert sorted(numbers.values(), key=int) == list(reading.questions[0].options)
        assert all(numbers[text.split()[0]] == number for text, number in shown(reading))
        assert all(question.answers == (numbers[question.details["label"]],) for question in reading.questions)
        mappings.append(tuple(numbers[verb] for verb in sorted(numbers)))
    assert len(set(mappings)) == len(mappings) > 40


def test_a_draw_depends_on_its_texts_and_the_seed_alone() -> None:
    of_all, of_some = readings(shots=30), readings(shots=30, samples=7)
    assert of_some == of_all[:7]
    later = {reading.questions[0].text: reading.context for reading in readings(shots=30, seed=7)}
    assert later.keys() == {reading.questions[0].text for reading in of_all}
    assert all(later[reading.questions[0].text] != reading.context for reading in of_all)


def test_together_shares_demonstrations_and_asks_about_the_same_texts() -> None:
    alone, together = readings(shots=24), readings(shots=24, together=10)
    assert [len(reading.questions) for reading in together] == [10, 10, 10, 10, 8]
    questions = [question.text for reading in together for question in reading.questions]
    assert questions == [reading.questions[0].text for reading in alone]
    texts = {text for reading in together for text, _ in shown(reading)}
    assert not texts & set(questions)


@pytest.mark.parametrize("tokens", [300, 1000, 4000])
def test_as_many_demonstrations_as_fit_in_tokens_of_the_backbone(tokens: int) -> None:
    task = ManyLabel(ManyLabelConfig(tokens=tokens, together=10)).on(load("tiny-llama", device="cpu"))
    sizes = [task.count(reading.context) for reading in task.load("nlu", None).examples]
    longest = max(map(len, readings()[0].context.split("\n\n")))
    assert len(sizes) == many_label.MEASURED
    assert max(sizes) <= tokens < max(sizes) + longest + 20
    assert len({reading.context.count("label:") for reading in task.load("nlu", None).examples}) == 1


def test_demonstrations_that_do_not_fit_are_refused() -> None:
    fits = len(shown(readings(tokens=500)[0]))
    assert len(shown(readings(tokens=500, shots=fits)[0])) == fits
    message = rf"^{fits + 1} demonstrations are longer than tokens=500, {fits} fit: raise tokens or lower shots\.$"
    with pytest.raises(UserError, match=message):
        readings(tokens=500, shots=fits + 1)
    with pytest.raises(UserError, match="1 demonstrations are longer than tokens=2, 0 fit"):
        readings(tokens=2)


def test_the_prompt_is_helmets() -> None:
    task = ManyLabel(ManyLabelConfig(shots=2))
    (reading, *_) = task.load("banking77", None).examples
    whole = task.protocol("banking77").whole(reading, reading.questions[0])  # type: ignore[attr-defined]
    (first, second) = shown(reading)
    assert whole == (
        "Use the provided mapping from the text to label to assign a label to the text. "
        'Only output "label: {label}" and nothing else. \n\n'
        f"{first[0]}\nlabel: {first[1]}\n\n{second[0]}\nlabel: {second[1]}\n\n{reading.questions[0].text}\nlabel:"
    )


@pytest.mark.parametrize(("text", "score"), [("12", 1), ("label: 12", 1), ("12.", 1), ("1", 0), ("12 3", 0), ("", 0)])
def test_the_number_must_be_right(text: str, score: float) -> None:
    assert many_label.right(text, Question("1", "a", ("12",))) == score


def test_labels_have_equal_weight_in_the_macro_mean() -> None:
    entries = [{"label": "a", "accuracy": 1.0}, {"label": "a", "accuracy": 1.0}, {"label": "b", "accuracy": 0.0}]
    records = [{"id": str(n), "work": str(n), "questions": [entry]} for n, entry in enumerate(entries)]
    metrics = many_label.summary(records)
    assert (metrics["accuracy"].value, metrics["macro_accuracy"].value) == (pytest.approx(2 / 3), 0.5)
    assert metrics["accuracy"].n == metrics["macro_accuracy"].n == 3


@pytest.mark.parametrize("scoring", ["write", "rank"])
def test_bench_reads_the_demonstrations_of_a_draw_once(scoring: str, tmp_path: Path) -> None:
    task = f"many-label/nlu(tokens=150,together=3,samples=6,scoring={scoring})"
    results = contextlab.bench("sliding", task, backbone="tiny-llama", out=tmp_path, progress=False)
    assert list(results.runs[0].metrics)[:2] == ["accuracy", "macro_accuracy"]
    assert results.runs[0].metrics["accuracy"].n == 6


@pytest.mark.parametrize("split", KNOWN)
def test_the_sets_of_the_data_folder_are_whole(split: str, shared: Path) -> None:
    texts = many_label.load(split, shared / "data")
    labels = {label for _, label in texts.train}
    assert (len(texts.train), len(texts.tested), len(labels)) == KNOWN[split]
    assert many_label.SETS[split].labels == len(labels)
    assert all(text.strip() for text, _ in (*texts.train, *texts.tested))
    (reading, *_) = readings(shared / "data", split, shots=len(labels) * 2, samples=1)
    assert set(Counter(number for _, number in shown(reading)).values()) == {2}
