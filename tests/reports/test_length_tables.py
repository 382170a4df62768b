from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas
import pytest
from stored_examples import accurate, keep, line, metric
from stored_runs import result

from contextlab.errors import UserError
from contextlab.harness.stored import Result
from contextlab.reports.filters import LeftOut
from contextlab.reports.length_tables import FEW, frame, tables
from contextlab.reports.names import Names
from contextlab.reports.render import render
from contextlab.reports.terminal import screens

VALUES = {"full": (0.9, 0.9, 0.8), "window": (0.8, 0.5, 0.3), "sinks": (0.0, 0.1, 0.1)}


def stored(folder: Path, method: str, split: str, value: float, texts: int = 10, **changes: Any) -> Result:
    """A run of texts with two questions of four options each, of which the first texts are answered."""
    questions = {"questions": [{"nats": [1.0] * 4}] * 2}
    answers = {f"t{n}": float(n < round(value * texts)) for n in range(texts)}
    lines = [
        line(name, answer, record=questions, parts={"accuracy": [[answer, 1, name]] * 2})
        for name, answer in answers.items()
    ]
    phase = {"flops": 4 * 10**12, "peak_bytes": 1, "seconds": 1.0, "tokens": 9}
    about: dict[str, Any] = {
        "task": "quiz",
        "split": split,
        "cost": {"contextualize": phase, "query": phase},
        "metrics": {"accuracy": metric(value, n=2 * texts, half=0.1)},
    }
    return keep(folder, accurate(method, value, **(about | changes)), lines)


@pytest.fixture
def runs(tmp_path: Path) -> list[Result]:
    splits = ("1k", "2k", "4k")
    return [
        stored(tmp_path, method, split, value, state={"bytes": 2**20 * (n + 1), "floats": 1, "tokens": 1})
        for method, values in VALUES.items()
        for n, (split, value) in enumerate(zip(splits, values, strict=True))
    ]


def test_a_table_has_scores_effective_lengths_and_costs_at_the_longest(runs: list[Result]) -> None:
    (shown,) = tables(runs)
    assert [column.label for column in shown.columns] == [
        "accuracy at 1k", "accuracy at 2k", "accuracy at 4k", "85 % of the base", "effective length",
        "state MiB at 4k", "TFLOPs per question at 4k",
    ]  # fmt: skip
    assert [shown.text(row, 4).partition(" ")[0] for row in range(3)] == [">=4k", "1k", ""]
    assert [shown.text(row, 3) for row in range(3)] == ["0.765", "0.680", "0.000"]
    assert [shown.text(0, column) for column in (5, 6)] == ["3", "2"]
    assert [shown.text(1, column)[-1] for column in range(3)] == ["]", "]", "*"]
    for sentence in (
        "quiz: real: 50 % of the books & more (local), n = 10 examples at a length; context own",
        "the longest tested length at which the score is at least 85 % of the base, which is the same method's score",
        "of effective lengths from 1,000 draws of these",
        "*: below half of the base",
        "A share of the base says little where the base is near chance, as it may be for a small model",
        "Chance is 0.25, the base 0 to 0.9",
        f"over fewer than {FEW} works, texts or conversations are too narrow",
        ">=: the longest tested length passes",
    ):
        assert sentence in shown.caption
    assert "Costs are per question" in " ".join(shown.notes)


def test_an_absolute_threshold_is_stated_and_has_no_column(runs: list[Result]) -> None:
    (shown,) = tables(runs, 0.85)
    assert [shown.text(row, 3).partition(" ")[0] for row in range(3)] == ["2k", "<1k", "<1k"]
    assert "at which the score is at least 0.85; in brackets" in shown.caption
    assert "<: the shortest tested length does not pass" in shown.caption
    assert "A share" not in shown.caption


@pytest.mark.parametrize("threshold", [0.0, -1.0, 85.6, float("nan")])
def test_another_threshold_is_refused(runs: list[Result], threshold: float) -> None:
    for make in (lambda: list(tables(runs, threshold)), lambda: frame(runs, threshold)):
        with pytest.raises(UserError, match=r"write 0.856 for 85.6 %"):
            make()


def test_every_task_has_a_table_and_methods_may_have_other_lengths(runs: list[Result], tmp_path: Path) -> None:
    more = [stored(tmp_path, "full", split, 0.5, task="other") for split in ("8k", "16k")]
    first, other = tables([*runs[:3], *runs[3:5], *more], names=Names({"method": {"full": "Dense"}}))
    assert [first.rows, other.rows] == [(("Dense",), ("window",)), (("Dense",),)]
    assert first.columns[-1].label == "TFLOPs per question at the longest length"
    assert first.text(1, 2) == ""
    assert other.columns[-1].label == "TFLOPs per question at 16k"


def test_a_shorter_length_that_is_missed_is_named(tmp_path: Path) -> None:
    values = {"1k": 1.0, "2k": 0.5, "4k": 0.9}
    (shown,) = tables([stored(tmp_path, "full", split, value, texts=FEW) for split, value in values.items()])
    assert "full does not pass at 2k, below its effective length" in shown.caption
    assert "too narrow" not in shown.caption


def test_runs_that_are_left_out_are_said(runs: list[Result]) -> None:
    (shown,) = tables([*runs, result()], left_out=LeftOut(12, ((2, "by n>1"),)))
    note = "Left out: 2 of 12 runs by n>1, 1 of a measure without an effective length"
    assert shown.left_out == frame([*runs, result()], left_out=LeftOut(12, ((2, "by n>1"),))).attrs["left_out"] == note


def test_lengths_are_texts_in_every_format(runs: list[Result]) -> None:
    (shown,) = tables(runs[:6])
    assert "| window | 0.800" in render(shown)
    assert " 1k [1k, 2k] |" in render(shown)
    latex = render(shown, "latex")
    assert r"{}1k {[}1k, 2k{]} &" in latex.replace("& 1k", "& {}1k")
    assert r"\textgreater{}=4k" in latex
    assert "table-space-text-post={{*}}" in latex
    assert "&gt;=4k" in render(shown, "html")
    (screen,) = screens(shown, 400)
    assert screen.row_count == 2


def test_the_frame_has_a_row_for_every_length(runs: list[Result]) -> None:
    lengths_frame = frame(runs)
    assert len(lengths_frame) == len(runs)
    window = lengths_frame[lengths_frame["method"] == "window"]
    assert list(window["length"]) == [1024, 2048, 4096]
    assert list(window["effective_length"]) == [1024] * 3
    assert list(window["halved"]) == [False, False, True]
    assert set(window["open_end"]) == {False}
    assert set(lengths_frame[lengths_frame["method"] == "full"]["open_end"]) == {True}
    assert lengths_frame[lengths_frame["method"] == "sinks"]["effective_length"].isna().all()
    assert list(window["flops_per_question"]) == [2e12] * 3
    missed = frame(runs, 0.85)
    assert missed[missed["method"] == "window"][["effective_length", "effective_low"]].isna().all(axis=None)
    assert pandas.api.types.is_integer_dtype(lengths_frame["effective_low"])
