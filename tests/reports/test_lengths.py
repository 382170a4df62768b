from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stored_examples import accurate, keep, line, metric
from stored_runs import changed, result

from contextlab.benchmarks.task import Part
from contextlab.errors import UserError
from contextlab.harness.stored import Result
from contextlab.reports.lengths import LengthRow, chance_of, length_of, name_of, of_tasks, places

NAMES = ("512", "1k", "2k", "4k", "8k")
scores = st.lists(st.integers(0, 20).map(lambda n: n / 20), min_size=2, max_size=5)


def answered(split: str, answers: Mapping[str, float], method: str = "full", **changes: Any) -> Result:
    """A run of questions with these answers, by their texts."""
    parts = {name: {"accuracy": [Part(answer, 1.0, name)]} for name, answer in answers.items()}
    value = sum(answers.values()) / len(answers)
    return accurate(method, value, **({"task": "squad", "split": split, "parts": parts} | changes))


def runs_of(values: Sequence[float], method: str = "full") -> list[Result]:
    """A run for each score, of 20 texts, the first of which are answered."""
    return [
        answered(split, {f"t{n}": float(n < round(20 * value)) for n in range(20)}, method)
        for split, value in zip(NAMES, values, strict=False)
    ]


def row_of(values: Sequence[float]) -> LengthRow:
    ((row,),) = of_tasks(runs_of(values))[0].values()
    return row


def text_of(values: Sequence[float], threshold: float | None = None) -> str:
    effective = row_of(values).effective(threshold)
    assert effective is not None
    return effective.named(effective.place)


@settings(max_examples=20)
@given(st.integers(1, 20).map(lambda n: n / 20), st.integers(2, 5))
def test_equal_scores_reach_beyond_the_longest_length(score: float, count: int) -> None:
    effective = row_of([score] * count).effective()
    longest = NAMES[count - 1]
    assert str(effective) == f">={longest} [>={longest}, >={longest}]"


@given(st.integers(1, 4), st.floats(0.3, 1))
def test_where_scores_fall_below_the_threshold_the_length_before_is_effective(fall: int, base: float) -> None:
    values = [base if n < fall else 0.84 * base for n in range(5)]
    assert places(np.array([values]))[0] == fall - 1
    kept = [base if n < fall else 0.85 * base for n in range(5)]
    assert places(np.array([kept]))[0] == 4


@given(scores, st.floats(0.01, 1))
def test_scaling_all_scores_changes_nothing(values: list[float], factor: float) -> None:
    of, scaled = np.array([values]), factor * np.array([values])
    assert places(of) == places(scaled)


@given(scores, st.floats(0.01, 1))
def test_the_effective_length_passes_and_no_longer_one_does(values: list[float], threshold: float) -> None:
    place = places(np.array([values]), threshold)[0]
    assert place < 0 or values[place] >= threshold - 1e-9
    assert all(value < threshold for value in values[place + 1 :])


def test_a_length_that_is_missed_below_the_effective_one_is_known() -> None:
    effective = row_of([1.0, 0.5, 0.9, 0.2]).effective()
    assert effective is not None
    assert (effective.named(effective.place), effective.missed) == ("2k", (1024,))


def test_an_absolute_threshold_can_be_missed_by_every_length() -> None:
    assert text_of([0.8, 0.7], 0.856) == "<512"
    assert text_of([0.9, 0.7], 0.856) == "512"
    assert text_of([0.9, 0.9], 0.856) == ">=1k"
    assert text_of([0.5, 0.4]) == "512"


def test_a_base_of_zero_has_no_share() -> None:
    assert row_of([0.0, 0.5]).effective() is None
    assert row_of([0.0, 0.5]).effective(0.4) is not None


def test_below_half_of_the_base_is_known() -> None:
    row = row_of([0.8, 0.4, 0.35])
    assert [row.halved(length) for length in row.lengths] == [False, False, True]


@settings(max_examples=8)
@given(st.permutations(range(8)))
def test_the_order_of_runs_changes_nothing(order: Sequence[int]) -> None:
    runs = [*runs_of([0.9, 0.8, 0.6, 0.3]), *runs_of([0.6, 0.6, 0.5, 0.6], "window")]
    first, other = (of_tasks(each)[0] for each in (runs, [runs[n] for n in order]))
    assert [[str(row.effective()) for row in rows] for rows in other.values()] == [
        [str(row.effective()) for row in rows] for rows in first.values()
    ]


def test_more_texts_narrow_the_interval() -> None:
    def width(count: int) -> int:
        generator = random.Random(3)
        chances = {"512": 0.8, "1k": 0.8, "2k": 0.72, "4k": 0.65, "8k": 0.4}
        runs = [
            answered(split, {f"{split}/{n}": float(generator.random() < chance) for n in range(count)})
            for split, chance in chances.items()
        ]
        ((row,),) = of_tasks(runs)[0].values()
        effective = row.effective()
        assert effective is not None
        assert effective.interval is not None
        low, high = effective.interval
        assert low <= effective.place <= high
        return high - low

    widths = [width(count) for count in (20, 100, 800)]
    assert widths == sorted(widths, reverse=True)
    assert widths[0] > widths[-1]


def test_lengths_of_the_same_texts_are_paired() -> None:
    def spread(names: str) -> float:
        runs = [
            answered(split, {f"{name}{n}": float(n % 10 < right) for n in range(40)})
            for split, name, right in zip(("512", "1k"), names, (8, 7), strict=True)
        ]
        ((row,),) = of_tasks(runs)[0].values()
        assert row.draws is not None
        return float((row.draws[:, 1] / row.draws[:, 0]).std())

    assert spread("aa") < 0.7 * spread("ab")


@pytest.mark.parametrize("parts", [{}, {"a": {"accuracy": [Part(1.0, 1.0, "a")]}}, {"a": {}, "b": {}}])
def test_one_cluster_or_no_stored_parts_have_no_interval(parts: dict[str, Any]) -> None:
    runs = [accurate("full", 0.5, task="squad", split=split, parts=parts) for split in ("512", "1k")]
    ((row,),) = of_tasks(runs)[0].values()
    assert str(row.effective()) == ">=1k"


@pytest.mark.parametrize(
    ("fields", "length", "task"),
    [
        ({"task": "needle", "split": "4k"}, 4096, "needle"),
        ({"task": "squad", "split": "512(prompt=chat)"}, 512, "squad(prompt=chat)"),
        ({"task": "chapterbreak", "split": "ctx-6k"}, 6144, "chapterbreak/ctx"),
        ({"task": "needle", "split": "4k", "tokens": 1000}, 1000, "needle"),
        ({"task": "needle", "split": "1k", "tokens": 8000}, 1024, "needle"),
        ({"task": "pg22", "split": "S2", "history": 300}, 300, "pg22/S2"),
        ({"task": "a", "split": "qa1-16k"}, 2**14, "a/qa1"),
        ({"task": "a", "split": "1M"}, 2**20, "a"),
        ({"task": "a", "split": "2k ("}, None, ""),
        ({"task": "agnews", "split": "n4"}, None, ""),
        ({"task": "pairs", "split": "140"}, None, ""),
    ],
)
def test_lengths_are_those_of_settings_and_splits(fields: dict[str, Any], length: int | None, task: str) -> None:
    run = accurate("full", 0.5, **fields)
    if length is None:
        with pytest.raises(UserError, match=f"{run.run_id} has no length"):
            length_of(run)
        return
    assert length_of(run) == length
    other = changed(run, run_id="other", tokens=7, history=None)
    assert list(of_tasks([run, other])[0]) == [task]


def test_lengths_have_the_names_of_splits() -> None:
    assert list(map(name_of, (0, 16, 512, 1000, 1024, 6144, 2**20))) == [
        "0k",
        "16",
        "512",
        "1,000",
        "1k",
        "6k",
        "1024k",
    ]


def test_what_has_no_effective_length_is_refused_in_one_sentence() -> None:
    with pytest.raises(UserError, match="nats_per_token has no effective length"):
        of_tasks([result("full", split="1k"), result("full", split="2k")])
    with pytest.raises(UserError, match="full has only the length 1k of squad: run it at several"):
        of_tasks([answered("1k", {"a": 1.0})])
    with pytest.raises(UserError, match="has no length"):
        of_tasks([answered("S1", {"a": 1.0}), answered("S2", {"a": 1.0})])
    twice = [answered("1k", {"a": 1.0}), answered("2k", {"a": 1.0}, tokens=1024)]
    with pytest.raises(UserError, match=r"two runs of squad at the length 1k .*--where"):
        of_tasks(twice)
    filtered = changed(answered("1k", {"a": 1.0}), metrics={"f1": metric(0.5)})
    with pytest.raises(UserError, match="accuracy has no effective length"):
        of_tasks([filtered])


def test_runs_without_a_place_are_counted() -> None:
    nats, without, alone = result(), answered("S1", {"a": 1.0}), answered("8k", {"a": 1.0}, "window")
    tasks, left_out = of_tasks([*runs_of([0.5, 0.5]), nats, without, alone])
    assert [len(rows) for rows in tasks.values()] == [1]
    assert left_out.sentence == (
        "Left out: 1 of 5 runs of a measure without an effective length, 1 without a length, "
        "1 at the only length of a method"
    )


def test_methods_contexts_and_seeds_are_rows_of_their_own() -> None:
    pairs = itertools.product(("512", "1k"), ({}, {"context": "wrong"}, {"provenance": {"seed": 1}}))
    ((rows),) = of_tasks([answered(split, {"a": 1.0}, **changes) for split, changes in pairs])[0].values()
    assert [(row.words["context"], row.words["seed"]) for row in rows] == [("own", "0"), ("wrong", "0"), ("own", "1")]


def test_chance_is_that_of_the_options_of_stored_questions(tmp_path: Path) -> None:
    choices = {"questions": [{"nats": [1.0, 2.0]}, {"nats": [1.0, 2.0, 3.0, 4.0]}]}
    own = {"nats": [0.5] * 6}
    for records, chance in (([choices], 0.375), ([own, own], 1 / 6), ([choices, {"nats": 2.0}], None), ([{}], None)):
        lines = [line(str(n), 1.0, record=record) for n, record in enumerate(records)]
        assert chance_of(keep(tmp_path, accurate("full", 0.5), lines)) == (chance and pytest.approx(chance))
    assert chance_of(accurate("full", 0.5)) is None
    assert chance_of(keep(tmp_path, result(), [line("a", 1.0, record=choices)])) is None
