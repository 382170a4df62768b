from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from stored_examples import accurate, keep, line, metric
from stored_runs import result, three

from contextlab.errors import UserError
from contextlab.reports.frame import frame_of
from contextlab.reports.plots.picture import FRONT, Panel, Picture
from contextlab.reports.plots.quality import Cost, length, pareto, position, reach, thousands

TO = "\N{EN DASH}"


def panel(picture: Picture) -> Panel:
    (one,) = picture.panels
    return one


def costing(method: str, nats: float, context: int | None, query: int, state: int = 2**20) -> dict[str, Any]:
    phases = {"contextualize": context, "query": query}
    costs = {
        phase: None if flops is None else {"flops": flops, "peak_bytes": 1, "seconds": flops / 1e12, "tokens": 10}
        for phase, flops in phases.items()
    }
    sizes = {"bytes": state, "floats": 1, "tokens": 1}
    return result(method, nats, cost={"train": None, **costs}, state=sizes)


RUNS = [
    costing("window", 3.2, None, 10**12),
    costing("full", 3.0, 2 * 10**12, 10**12),
    costing("hso", 3.3, 10**12, 10**12),
]


@pytest.mark.parametrize(
    ("x", "costs"), [("flops", [1.0, 3.0, 2.0]), ("seconds", [1.0, 3.0, 2.0]), ("state", [1.0, 1.0, 1.0])]
)
def test_costs_of_all_phases_but_training_are_summed(x: Cost, costs: list[float]) -> None:
    drawn = panel(pareto(frame_of(RUNS), x, None, None))
    assert [one.x for one in drawn.series] == [(cost,) for cost in costs]
    assert [one.y for one in drawn.series] == [(3.2,), (3.0,), (3.3,)]
    assert [one.intervals for one in drawn.series] == [((y - 0.5, y + 0.5),) for y in (3.2, 3.0, 3.3)]


def test_the_front_is_a_stair_through_those_that_none_beats() -> None:
    (stair,) = panel(pareto(frame_of(RUNS), "flops", None, None)).guides
    assert stair.label == FRONT
    assert list(zip(stair.x, stair.y, strict=True)) == [(1.0, 3.2), (3.0, 3.2), (3.0, 3.0)]


def test_without_a_known_direction_there_is_no_front() -> None:
    runs = [accurate(name, 0.5, metrics={"smoothness": metric(0.5)}, measure={"name": "smoothness"}) for name in "ab"]
    assert panel(pareto(frame_of(runs), "flops", None, None)).guides == ()


def test_a_run_whose_cost_was_not_counted_is_no_point() -> None:
    uncounted = result("sinks")
    uncounted["cost"]["query"]["flops"] = None
    assert [one.label for one in panel(pareto(frame_of([*RUNS, uncounted]), "flops", None, None)).series] == [
        "window",
        "full",
        "hso",
    ]
    with pytest.raises(UserError, match="no TFLOPs per example"):
        pareto(frame_of([uncounted]), "flops", None, None)


def test_costs_of_several_powers_of_ten_are_on_a_logarithmic_axis() -> None:
    assert panel(pareto(frame_of(RUNS), "flops", None, None)).x.scale == "linear"
    wide = [*RUNS, costing("longmem", 3.1, None, 10**13)]
    assert panel(pareto(frame_of(wide), "flops", None, None)).x.scale == "log"


def test_seconds_of_two_machines_are_no_picture_but_flops_are() -> None:
    runs = three()
    runs[0]["provenance"]["device"] = "cuda"
    assert pareto(frame_of(runs), "flops", None, None)
    with pytest.raises(UserError, match="one device"):
        pareto(frame_of(runs), "seconds", None, None)


@pytest.mark.parametrize("changes", [{"split": "S1"}, {"context": "none"}, {"backbone": "gpt2"}])
def test_what_differs_otherwise_is_refused(changes: dict[str, str]) -> None:
    runs = [result("window"), result("full", **changes)]
    with pytest.raises(UserError, match="choose with --where"):
        pareto(frame_of(runs), "flops", None, None)


def sized(method: str, split: str, tokens: int, value: float) -> dict[str, Any]:
    run = accurate(method, value, task="squad", split=split)
    cost = {"flops": 1, "peak_bytes": 1, "seconds": 1.0, "tokens": tokens}
    return run | {"cost": {"train": None, "contextualize": cost, "query": cost}}


def test_lengths_of_one_benchmark_are_a_line_for_every_method() -> None:
    runs = [sized("full", "4k", 4000, 0.9), sized("full", "1k", 1000, 0.8), sized("window", "1k", 1000, 0.6)]
    drawn = panel(length(frame_of(runs), None, None))
    assert {one.label: (one.x, one.y) for one in drawn.series} == {
        "full": ((1000.0, 4000.0), (0.8, 0.9)),
        "window": ((1000.0,), (0.6,)),
    }
    assert drawn.x.scale == "log2"
    with pytest.raises(UserError, match="one benchmark"):
        length(frame_of([*runs, result("full")]), None, None)


def by(metrics: dict[str, float], **changes: Any) -> dict[str, Any]:
    return result("full", metrics={name: metric(value, half=0.5) for name, value in metrics.items()}, **changes)


def test_positions_are_bins_in_their_order() -> None:
    stored = {
        "nats_per_token": 3.0,
        "nats_per_token_at_16k": 2.0,
        "nats_per_token_at_0k": 4.0,
        "nats_per_token_at_2k": 3.5,
    }
    drawn = panel(position(frame_of([by(stored)]), None, None))
    assert drawn.series[0].y == (4.0, 3.5, 2.0)
    assert [text for _, text in drawn.x.ticks] == [f"0{TO}2k", f"2{TO}16k", "16k on"]
    with pytest.raises(UserError, match="hold no metric of accuracy by position"):
        position(frame_of([by(stored)]), "accuracy", None)
    with pytest.raises(UserError, match="hold no metric by position"):
        position(frame_of(three()), None, None)


def test_reaches_are_bins_in_their_order() -> None:
    stored = {"accuracy": 0.7, "accuracy_1k": 0.6, "accuracy_512": 0.9, "accuracy_16k": 0.2}
    measure = {"name": "accuracy", "higher_is_better": True, "bounded": True}
    drawn = panel(reach(frame_of([by(stored, measure=measure)]), None, None))
    assert drawn.series[0].y == (0.9, 0.6, 0.2)
    assert [text for _, text in drawn.x.ticks] == ["512", "1k", "16k"]


def test_a_baseline_is_zero_and_no_series(tmp_path: Path) -> None:
    runs = [
        keep(
            tmp_path,
            accurate(method, value),
            [line(name, value, parts={"accuracy": [[value, 1, name]]}) for name in "ab"],
        )
        for method, value in {"window": 0.0, "full": 1.0}.items()
    ]
    drawn = panel(pareto(frame_of(runs), "flops", None, "window"))
    assert [(one.label, one.y) for one in drawn.series] == [("full", (1.0,))]
    assert [guide.kind for guide in drawn.guides] == ["level"]
    assert "window" in drawn.y.label
    with pytest.raises(UserError, match="shares examples with full"):
        pareto(frame_of(runs).query("method == 'full'"), "flops", None, "full")


def test_sizes_are_read_as_they_are_written() -> None:
    assert [thousands(one) for one in ("512", "1k", "64k")] == [512, 1024, 65536]
