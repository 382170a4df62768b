from __future__ import annotations

from typing import Any

import pytest
from stored_runs import result, three

from contextlab.errors import UserError
from contextlab.reports.frame import frame_of
from contextlab.reports.selected import selected


def runs() -> list[dict[str, Any]]:
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
    assert [one["method"] for one in results] == left
    assert list(dict.fromkeys(frame.run)) == [one["run_id"] for one in results]


def test_conditions_on_metrics_leave_the_others_out() -> None:
    results = selected(runs(), ["metric=word*"])
    frame = frame_of(results)
    assert [list(one["metrics"]) for one in results] == [["word_perplexity"]] * 5
    assert set(frame.metric) == {"word_perplexity"}
    assert [one["method"] for one in selected(runs(), ["measure=true", "value<3.01"])] == ["full"]


def test_names_are_those_of_what_is_left() -> None:
    """Two forms of a method differ in a setting; alone, none needs it."""
    assert set(frame_of(selected(runs()[3:], [])).method) == {"longmem(K=32)", "longmem(K=64)"}
    assert set(frame_of(selected(runs()[3:], ["settings.K=64"])).method) == {"longmem"}


def test_a_condition_that_nothing_fits_is_an_error() -> None:
    with pytest.raises(UserError, match="No result fits"):
        selected(runs(), ["task=squad"])
