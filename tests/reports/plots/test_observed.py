from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas
import pytest
from stored_examples import keep, line, metric, of_tokens
from stored_runs import result

from contextlab.errors import UserError
from contextlab.harness.stored import Result
from contextlab.reports.frame import frame_of
from contextlab.reports.plots.observed import (
    Observation,
    baselines_of,
    check_one,
    example_values,
    higher_is_better,
    measure_rows,
    observe,
    runs_of,
)

BOOKS = {"a": 3.0, "b": 2.0, "c": 4.0}


def perplexity(folder: Path, method: str, shift: float, books: dict[str, float] | None = None) -> Result:
    books = BOOKS if books is None else books
    lines = [of_tokens(name, nats + shift, {"0k": nats, "1k": nats + 2 * shift}) for name, nats in books.items()]
    metrics = {
        name: metric(3.0, half=1.0) for name in ("nats_per_token", "nats_per_token_at_0k", "nats_per_token_at_1k")
    }
    return keep(folder, result(method, metrics=metrics), lines)


def differences(rows: pandas.DataFrame) -> list[Observation]:
    return observe(rows, baselines_of(rows, "window"))


@pytest.fixture
def frame(tmp_path: Path) -> pandas.DataFrame:
    return frame_of([perplexity(tmp_path, "window", 0.0), perplexity(tmp_path, "sliding", -0.25)])


def test_without_a_baseline_values_are_those_stored(frame: pandas.DataFrame) -> None:
    rows = measure_rows(frame, None)
    assert [(observation.value, observation.interval) for observation in observe(rows, {})] == [(3.0, (2.0, 4.0))] * 2


@pytest.mark.parametrize(
    ("name", "gain"), [("nats_per_token", -0.25), ("nats_per_token_at_0k", 0.0), ("nats_per_token_at_1k", -0.5)]
)
def test_a_difference_is_paired_whatever_the_books_differ_in(frame: pandas.DataFrame, name: str, gain: float) -> None:
    (observation,) = differences(measure_rows(frame, name))
    assert observation.run.method == "sliding"
    assert observation.value == pytest.approx(gain)
    # The books differ by nats, and the differences not at all.
    assert observation.interval == pytest.approx((gain, gain))


def test_an_example_counts_its_parts_by_their_sizes(tmp_path: Path) -> None:
    """The value of an example is the metric over its tokens: 10 of 2.0 nats and 90 of 3.0 are 100 of 2.9."""
    parts = {"a": [[20.0, 10, "a"], [270.0, 90, "a"]], "b": [[30.0, 10, "b"]]}
    lines = [line(name, 1.0, parts={"nats_per_token": of_example}) for name, of_example in parts.items()]
    frame = frame_of([keep(tmp_path, result("window"), lines)])
    (row,) = runs_of(measure_rows(frame, None))
    assert example_values(row) == {"a": pytest.approx(2.9), "b": pytest.approx(3.0)}


def test_a_bounded_measure_has_the_interval_of_tables_whatever_its_name(tmp_path: Path) -> None:
    measure = {"name": "contains", "higher_is_better": True, "bounded": True}
    runs = [
        keep(
            tmp_path,
            result(name, measure=measure, metrics={"contains": metric(1.0)}),
            [line(text, 1.0, parts={"contains": [[1.0, 1.0, text]]}) for text in "ab"],
        )
        for name in ("window", "sliding")
    ]
    (observation,) = differences(measure_rows(frame_of(runs), None))
    assert observation.value == 0
    assert observation.interval is not None
    assert observation.interval[0] < 0 < observation.interval[1]


def test_only_shared_examples_count(tmp_path: Path) -> None:
    runs = [perplexity(tmp_path, "window", 0.0), perplexity(tmp_path, "sliding", -1.0, {"b": 2.0, "z": 9.0})]
    (observation,) = differences(measure_rows(frame_of(runs), None))
    assert observation.value == pytest.approx(-1.0)
    apart = [perplexity(tmp_path, "window", 0.0), perplexity(tmp_path, "full", 0.0, {"y": 1.0})]
    assert differences(measure_rows(frame_of(apart), None)) == []


def test_questions_are_grouped_by_reach(tmp_path: Path) -> None:
    def lines_of(right: dict[str, float]) -> list[dict[str, Any]]:
        questions = [{"id": reach, "reach": reach, "accuracy": accuracy} for reach, accuracy in right.items()]
        return [line(name, 0.5, record={"id": name, "work": name, "questions": questions}) for name in "xy"]

    metrics = {"accuracy": metric(0.5), "accuracy_512": metric(0.5), "accuracy_1k": metric(0.5)}
    measure = {"name": "accuracy", "higher_is_better": True, "bounded": True}
    runs = [
        keep(tmp_path, result(method, metrics=metrics, measure=measure), lines_of(right))
        for method, right in {"window": {"512": 1.0, "1k": 0.0}, "full": {"512": 1.0, "1k": 1.0}}.items()
    ]
    frame = frame_of(runs)
    assert [observation.value for observation in differences(measure_rows(frame, "accuracy_1k"))] == [1.0]
    assert [observation.value for observation in differences(measure_rows(frame, "accuracy_512"))] == [0.0]


def test_a_baseline_is_one_method(frame: pandas.DataFrame, tmp_path: Path) -> None:
    rows = measure_rows(frame, None)
    with pytest.raises(UserError, match="There is no method in these results 'windows': did you mean 'window'"):
        baselines_of(rows, "windows")
    forms = [result("window", method_config={"N": n}, changed=["N"], run_id=f"w{n}", folder=tmp_path) for n in (1, 2)]
    with pytest.raises(UserError, match="several results of window for pg22/S2"):
        baselines_of(measure_rows(frame_of(forms), None), "window")


def test_what_must_be_one_is_named_with_its_values(frame: pandas.DataFrame) -> None:
    with pytest.raises(
        UserError, match=r"one method, and there are sliding, window: choose with --where 'method=\.\.\.'"
    ):
        check_one(frame, ["task", "method"], "A picture shows")
    check_one(frame, ["task"], "A picture shows")


def test_directions_are_those_of_the_task_or_of_the_name(frame: pandas.DataFrame) -> None:
    assert higher_is_better(frame, "nats_per_token") is False
    assert higher_is_better(frame, "nats_per_token_at_1k") is False
    assert higher_is_better(frame, "accuracy_512") is True
    assert higher_is_better(frame, "smoothness") is None
    with pytest.raises(UserError, match="There is no metric"):
        measure_rows(frame, "smoothness")
