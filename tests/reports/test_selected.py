from __future__ import annotations

from pathlib import Path

import pytest
from stored_runs import changed, result, store, three

from contextlab.errors import UserError
from contextlab.harness.stored import Result
from contextlab.reports.frame import frame_of
from contextlab.reports.left_out import LeftOut
from contextlab.reports.limits import Limit
from contextlab.reports.selected import chosen, selected


def runs() -> list[Result]:
    return [*three(), *(result("longmem", 3.1, method_config={"K": k}, changed=[]) for k in (32, 64))]


@pytest.mark.parametrize(
    ("conditions", "left"),
    [
        ([], ["window", "sliding", "full", "longmem", "longmem"]),
        (["method=longmem"], ["longmem", "longmem"]),
        (["task=pg22", "method!=longmem"], ["window", "sliding", "full"]),
        (["settings.K>32"], ["longmem"]),
    ],
)
def test_results_and_frame_are_of_the_same_runs(conditions: list[str], left: list[str]) -> None:
    results = selected(runs(), conditions)
    frame = frame_of(results)
    assert [one.method for one in results] == left
    assert list(dict.fromkeys(frame.run)) == [one.run_id for one in results]


def test_conditions_on_metrics_leave_the_others_out() -> None:
    results = selected(runs(), ["metric=word*"])
    frame = frame_of(results)
    assert [list(one.metrics) for one in results] == [["word_perplexity"]] * 5
    assert set(frame.metric) == {"word_perplexity"}
    assert [one.method for one in selected(runs(), ["measure=true", "value<3.01"])] == ["full"]


def test_names_are_those_of_what_is_left() -> None:
    """Two forms of a method differ in a setting; alone, none needs it."""
    assert set(frame_of(selected(runs()[3:], [])).method) == {"longmem(K=32)", "longmem(K=64)"}
    assert set(frame_of(selected(runs()[3:], ["settings.K=64"])).method) == {"longmem"}


def test_a_condition_that_nothing_fits_is_an_error() -> None:
    with pytest.raises(UserError, match="No result fits"):
        selected(runs(), ["task=squad"])


def stored(folder: Path, results: list[Result]) -> None:
    for one in results:
        store(folder / one.run_id, one)


def test_every_stored_run_is_shown_or_counted(tmp_path: Path) -> None:
    stored(tmp_path / "a", runs())
    again = result()
    stored(tmp_path / "b", [again])
    stored(tmp_path / "c", [changed(again, provenance={"started": "2027"})])
    (tmp_path / "b" / "half").mkdir()
    (tmp_path / "b" / "half" / "manifest.json").write_text("{}")
    large = result("full", 3.0, state={"bytes": 2**30, "floats": 1, "tokens": 1})
    stored(tmp_path / "d", [large])
    folders = [tmp_path / name for name in "abcd"]
    selection = chosen([*folders, folders[0]], ["method!=sliding", "settings.K!=64"], [Limit.parse("state=1MiB")])
    assert selection.left_out == LeftOut(
        9,
        (
            (1, "unfinished"),
            (1, "stored again later"),
            (1, "by method!=sliding"),
            (1, "by settings.K!=64"),
            (1, "by the limit state=1MiB"),
        ),
    )
    assert selection.left_out.stored == len(selection.results) + sum(n for n, _ in selection.left_out.reasons)
    assert selection.unfinished == [tmp_path / "b" / "half"]
    assert [one.provenance.started for one in selection.results if one.run_id == again.run_id] == ["2027"]


def test_a_condition_on_metrics_leaves_no_run_out(tmp_path: Path) -> None:
    stored(tmp_path, runs())
    selection = chosen([tmp_path], ["metric=word*"])
    assert selection.left_out == LeftOut(5)
    assert len(selection.results) == 5
