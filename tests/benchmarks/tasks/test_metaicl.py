from __future__ import annotations

import random
from typing import Any

import pytest

from contextlab import grammar, registry
from contextlab.benchmarks.examples import Question
from contextlab.benchmarks.metrics.estimates import paired
from contextlab.benchmarks.protocols.answers import AnswerProtocol, RankProtocol
from contextlab.benchmarks.task import Measure
from contextlab.benchmarks.tasks.metaicl import CLASSIFICATION, CONVERTED, OTHERS, SEEDS, MetaICL, summarise
from contextlab.errors import UserError


def record(task: str, seed: int, pairs: list[tuple[int, int]], classes: int = 3) -> dict[str, Any]:
    """One example with these answers and predictions."""
    entries = [
        {
            "id": f"{task}/{n}/{seed}",
            "item": f"{task}/{n}",
            "seed": seed,
            "answer": answer,
            "prediction": prediction,
            "accuracy": float(answer == prediction),
            "nats": [1.0] * classes,
        }
        for n, (answer, prediction) in enumerate(pairs)
    ]
    return {"id": f"{task}/{seed}/0", "work": task, "questions": entries}


def test_the_setting_has_26_tasks() -> None:
    assert len(CLASSIFICATION) == 16
    assert len(OTHERS) == 10
    assert not set(CLASSIFICATION) & set(OTHERS)
    assert set(CONVERTED) < {*CLASSIFICATION, *OTHERS}
    assert SEEDS == (13, 21, 42, 87, 100)


def test_macro_f1_over_the_right_classes_equals_scikit_learn() -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    draw = random.Random(0)
    for size in (1, 2, 5, 40):
        pairs = [(draw.randrange(3), draw.randrange(3)) for _ in range(size)]
        metrics = summarise([record("sick", 13, pairs)], "accuracy")
        answers, predictions = zip(*pairs, strict=True)
        labels = sorted({*answers})
        expected = sklearn.f1_score(answers, predictions, labels=labels, average="macro", zero_division=0)
        assert metrics["macro_f1_sick"].value == pytest.approx(expected, abs=1e-12)
        assert metrics["accuracy_sick"].value == pytest.approx(sum(a == p for a, p in pairs) / size)


def test_tasks_have_equal_weight_and_seeds_are_separate() -> None:
    records = [
        record("sick", 13, [(0, 0), (1, 1)]),
        record("sick", 21, [(0, 1), (1, 0)]),
        record("codah", 13, [(0, 0)] * 9 + [(0, 1)]),
    ]
    values = {name: metric.value for name, metric in summarise(records, "accuracy").items()}
    assert next(iter(values)) == "accuracy"
    assert values["accuracy"] == pytest.approx((0.5 + 0.9) / 2)
    assert values["accuracy_classification"] == values["macro_f1_classification"] == values["macro_f1_sick"] == 0.5
    assert values["accuracy_other"] == values["accuracy_codah"] == pytest.approx(0.9)
    assert values["score"] == pytest.approx((0.5 + 0.9) / 2)
    assert values["accuracy_seed_13"] == pytest.approx((1.0 + 0.9) / 2)
    assert values["accuracy_seed_21"] == 0.0
    assert "macro_f1_codah" not in values


def test_a_paired_difference_is_that_of_the_mean_over_tasks() -> None:
    """A large task has more readings than a small one, and both have equal weight."""
    protocol = MetaICL().protocol("k16")

    def run(right: dict[str, int]) -> list[dict[str, Any]]:
        readings = [("sick", n) for n in range(9)] + [("codah", 0), ("dream", 0)]
        return [
            {**record(task, 13, [(0, int(i >= right[task])) for i in range(4)]), "id": f"{task}/{n}"}
            for task, n in readings
        ]

    runs = [run({"sick": 3, "codah": 2, "dream": 2}), run({"sick": 1, "codah": 3, "dream": 2})]
    first, second = ({entry["id"]: protocol.parts(entry)["accuracy"] for entry in records} for records in runs)
    measure = protocol.measure
    assert measure == Measure("accuracy", higher_is_better=True, bounded=True)
    metric = paired(measure, first, second)
    assert metric is not None
    expected = protocol.summarise(runs[0])["accuracy"].value - protocol.summarise(runs[1])["accuracy"].value
    assert metric.value == pytest.approx(expected) == pytest.approx((0.5 - 0.25 + 0) / 3)
    assert metric.low is not None
    assert metric.low < 0


def test_an_item_under_several_seeds_is_one_cluster() -> None:
    pairs = [(0, 0), (1, 0), (1, 1), (0, 0), (1, 1), (0, 1)]
    once, thrice = (
        summarise([record("sick", seed, pairs) for seed in seeds], "accuracy") for seeds in ([13], SEEDS[:3])
    )
    for name in ("accuracy_sick", "macro_f1_sick"):
        single, three = once[name], thrice[name]
        assert single.low is not None
        assert three.low is not None
        assert (three.value, three.n) == (single.value, 3 * single.n)
        assert three.low == pytest.approx(single.low, abs=0.03)


def test_means_over_tasks_are_over_as_many_clusters_as_there_are_tasks() -> None:
    summary = summarise([record("sick", 13, [(0, 0), (1, 0)])], "accuracy")
    assert {summary[name].low for name in ("accuracy", "score", "accuracy_seed_13", "macro_f1_classification")} == {
        None
    }
    assert summary["accuracy_sick"].low is not None


def test_written_answers_have_no_f1_and_need_no_right_case() -> None:
    entries = [{"item": "sick/0", "seed": 13, "exact_match": 1.0}, {"item": "sick/1", "seed": 13, "exact_match": 0.0}]
    metrics = summarise([{"id": "sick/13/0", "work": "sick", "questions": entries}], "exact_match")
    assert metrics["exact_match"].value == metrics["exact_match_sick"].value == 0.5
    assert not any("f1" in name for name in metrics)
    protocol = MetaICL().protocol("k16-written")
    assert isinstance(protocol, AnswerProtocol)
    question = Question("q", "?", ("Positive",))
    scores = [protocol.scores["exact_match"](text, question) for text in ("positive", "Output: POSITIVE", "positive.")]
    assert scores == [1.0, 1.0, 0.0]
    assert protocol.max_new_tokens == 10


def test_a_class_that_is_only_predicted_does_not_count() -> None:
    metrics = summarise([record("sick", 13, [(0, 0), (0, 2), (1, 1)])], "accuracy")
    assert metrics["macro_f1_sick"].value == pytest.approx((2 / 3 + 1) / 2)


@pytest.mark.parametrize(
    "rest", ["-written(upstream=true)", "(upstream=true,prompt=chat)", "(upstream=true,turns=own)"]
)
def test_upstreams_way_is_one_of_ranking_plain_text(rest: str) -> None:
    item = grammar.split(f"k4{rest}")
    task = registry.task("metaicl", item.settings)
    for use in (task.check_split, task.protocol, lambda split: task.load(split, None)):
        with pytest.raises(UserError, match="leave -written, prompt= and turns= out"):
            use(item.name)


def test_splits_name_the_shots_and_the_way_of_answering() -> None:
    assert {split.partition("-")[0] for split in MetaICL.splits} == {"k1", "k2", "k4", "k8", "k16"}
    assert isinstance(MetaICL().protocol("k4"), RankProtocol)
    sample = {split: MetaICL().load(split, None).examples for split in ("k2", "k2-written")}
    assert sample["k2"] == sample["k2-written"]
    assert sample["k2"][0].context.count("Input: ") == 2
    assert sample["k2"][0].work != sample["k2"][1].work
