from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stored_examples import keep, line
from stored_runs import nats_of, result

from contextlab.benchmarks.metrics.estimates import holm
from contextlab.harness.stored import Result
from contextlab.reports import significance
from contextlab.reports.cells import Table
from contextlab.reports.layout import TableLayout
from contextlab.reports.significance import PartsOf, marks
from contextlab.reports.tables import comparison

TEXTS = [random.Random(0).gauss(3, 1) for _ in range(12)]


def run(method: str, gain: float, noise: float = 0.01, **changes: Any) -> Result:
    """A run that is better than the texts' own nats by a gain."""
    draw = random.Random(method + str(changes.get("run_id", "")))
    values = {str(n): text - gain + draw.gauss(0, noise) for n, text in enumerate(TEXTS)}
    mean = sum(values.values()) / len(values)
    return result(method, mean, parts=nats_of(values), **changes)


def marked(shown: Table, column: int = 0) -> dict[str, str]:
    return {
        shown.rows[row][0]: cell.mark for (row, number), cell in shown.cells.items() if number == column and cell.mark
    }


def table(*runs: Result, **more: Any) -> Table:
    return comparison(runs, TableLayout(marks=True, costs=("none",), **more))


def test_the_best_and_the_second_best_are_marked_where_they_differ() -> None:
    shown = table(run("a", 0.0), run("b", 0.2), run("c", 0.1), run("d", 0.0))
    assert marked(shown) == {"b": "best", "c": "second"}


def test_what_may_be_chance_is_not_marked() -> None:
    assert marked(table(run("a", 0.0), run("b", 0.001), run("c", 0.0005))) == {}
    assert marked(table(run("a", 0.0), run("b", 0.2), run("c", 0.2))) == {}
    assert marked(table(run("a", 0.0), run("b", 0.2), run("c", 0.2), run("d", -0.3))) == {}


def test_of_two_methods_only_the_better_one_is_marked() -> None:
    assert marked(table(run("a", 0.0), run("b", 0.2))) == {"b": "best"}


def test_without_marks_nothing_is_tested() -> None:
    shown = comparison([run("a", 0.0), run("b", 0.2)], TableLayout())
    assert marked(shown) == {}
    assert "the best" not in shown.caption


def test_where_higher_is_better_the_highest_is_the_best() -> None:
    measure = {"name": "nats_per_token", "higher_is_better": True, "bounded": False}
    shown = table(run("a", 0.0, measure=measure), run("b", 0.2, measure=measure), run("c", 0.1, measure=measure))
    assert marked(shown) == {"a": "best", "c": "second"}


def test_only_what_was_run_on_the_same_examples_is_compared() -> None:
    fewer = run("b", 0.2, data={"examples": 2})
    assert marked(table(run("a", 0.0), fewer)) == {}


def test_metrics_without_parts_are_not_marked() -> None:
    shown = table(run("a", 0.0), run("b", 0.2), metrics=("word_perplexity",))
    assert marked(shown) == {}


def test_one_text_is_no_test() -> None:
    untold = [result(name, nats, parts=nats_of({"x": nats})) for name, nats in (("a", 3.0), ("b", 2.0))]
    assert marked(table(*untold)) == {}


def test_a_gain_that_not_all_seeds_have_is_not_marked() -> None:
    def seeds(gains: list[float]) -> list[Result]:
        return [run("b", gain, run_id=f"b{n}", provenance={"seed": n}) for n, gain in enumerate(gains)]

    zeros = [run("a", 0.0, run_id=f"a{n}", provenance={"seed": n}) for n in range(3)]
    steady = table(*zeros, *seeds([0.2, 0.21, 0.19]), mean_seeds=True)
    assert marked(steady) == {"b": "best"}
    assert "Mean ± standard deviation over seeds 0, 1, 2" in steady.caption
    assert "± 0.0" in steady.text(1, 0)
    assert marked(table(*zeros, *seeds([0.5, 0.3, -0.2]), mean_seeds=True)) == {}


probability = st.floats(0, 0.2)


@given(st.lists(st.floats(0, 9), min_size=2, max_size=5, unique=True), st.data())
def test_marks_follow_from_holms_correction_over_all_pairs(values: list[float], data: st.DataObject) -> None:
    pairs = list(itertools.combinations(range(len(values)), 2))
    pvalues = {pair: data.draw(probability) for pair in pairs}
    marks_by_name = marks(values, higher=True, pvalue=lambda a, b: pvalues[a, b])
    corrected = dict(zip(pairs, holm([pvalues[pair] for pair in pairs]), strict=True))
    best, second, *_ = sorted(range(len(values)), key=lambda n: -values[n])

    def real(value: int) -> bool:
        return all(p < 0.05 for pair, p in corrected.items() if value in pair)

    assert (marks_by_name.get(best) == "best") == real(best)
    assert (marks_by_name.get(second) == "second") == (real(second) and len(values) > 2)
    assert set(marks_by_name) <= {best, second}


def test_parts_are_read_once_and_only_when_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []
    for stored in (run("a", 0.0), run("b", 0.2), run("c", 0.1)):
        of_examples = {
            name: {"nats_per_token": parts["nats_per_token"]} for name, parts in (stored.parts or {}).items()
        }
        runs.append(keep(tmp_path, stored, [line(name, 1.0, parts=parts) for name, parts in of_examples.items()]))
    folders = [stored.folder for stored in runs]
    read: list[Path | None] = []
    parts_of = significance.parts_of
    monkeypatch.setattr(significance, "parts_of", lambda stored: read.append(stored.folder) or parts_of(stored))
    comparison(runs)
    assert read == []
    assert marked(table(*runs)) == {"b": "best", "c": "second"}
    assert set(read) == set(folders)
    assert len(read) == len(folders)


def test_a_result_that_carries_no_parts_and_has_no_folder_has_none() -> None:
    assert PartsOf()(result(parts=None)) == {}
