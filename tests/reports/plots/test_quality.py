from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from stored_examples import accurate, keep, line, metric
from stored_runs import changed, result, three

from contextlab.errors import UserError
from contextlab.harness.stored import Result
from contextlab.reports.filters import LeftOut
from contextlab.reports.frame import frame_of
from contextlab.reports.plots.chosen import NONE, PictureOptions
from contextlab.reports.plots.picture import FRONT, Panel, Picture
from contextlab.reports.plots.quality import CostAxis, length, pareto, position, reach, thousands

TO = "\N{EN DASH}"
Draw = Callable[..., Picture]


def draw(kind: Draw, runs: Sequence[Result], baseline: str | None = NONE, **options: Any) -> Picture:
    return kind(frame_of(runs), PictureOptions(baseline=baseline, **options), LeftOut(len(runs)))


def panel(kind: Draw, runs: Sequence[Result], baseline: str | None = NONE, **options: Any) -> Panel:
    (drawn_panel,) = draw(kind, runs, baseline, **options).panels
    return drawn_panel


def costing(method: str, nats: float, context: int | None, query: int, state: int = 2**20) -> Result:
    phases = {"contextualize": context, "query": query}
    costs = {
        phase: None if flops is None else {"flops": flops, "peak_bytes": 1, "seconds": flops / 1e12, "tokens": 10}
        for phase, flops in phases.items()
    }
    sizes = {"bytes": state, "floats": 1, "tokens": 1}
    return result(method, nats, cost={"train": None, **costs}, state=sizes)


def stored(folder: Path, method: str, values: dict[str, float], **changes: Any) -> Result:
    """A run with its examples, of which all others have the same data."""
    lines = [line(name, value, parts={"accuracy": [[value, 1, name]]}) for name, value in values.items()]
    return keep(folder, accurate(method, 0.5, **changes), lines)


RUNS = [
    costing("window", 3.2, None, 10**12),
    costing("full", 3.0, 2 * 10**12, 10**12),
    costing("hso", 3.3, 10**12, 10**12),
]


@pytest.mark.parametrize(
    ("x", "costs"), [("flops", [1.0, 3.0, 2.0]), ("seconds", [1.0, 3.0, 2.0]), ("state", [1.0, 1.0, 1.0])]
)
def test_costs_of_all_phases_but_training_are_summed(x: CostAxis, costs: list[float]) -> None:
    drawn = panel(pareto, RUNS, x=x)
    assert [series.x for series in drawn.series] == [(cost,) for cost in costs]
    assert [series.y for series in drawn.series] == [(3.2,), (3.0,), (3.3,)]
    assert [series.intervals for series in drawn.series] == [((y - 0.5, y + 0.5),) for y in (3.2, 3.0, 3.3)]


def test_the_front_is_a_stair_through_those_that_none_beats() -> None:
    (stair,) = panel(pareto, RUNS).guides
    assert stair.label == FRONT
    assert list(zip(stair.x, stair.y, strict=True)) == [(1.0, 3.2), (3.0, 3.2), (3.0, 3.0)]


def test_without_a_known_direction_there_is_no_front() -> None:
    runs = [accurate(name, 0.5, metrics={"smoothness": metric(0.5)}, measure={"name": "smoothness"}) for name in "ab"]
    assert panel(pareto, runs).guides == ()


def test_a_run_whose_cost_was_not_counted_is_no_point() -> None:
    cost = {"flops": None, "peak_bytes": 1, "seconds": 1.5, "tokens": 10}
    uncounted = result("sinks", cost={"query": cost})
    assert [series.label for series in panel(pareto, [*RUNS, uncounted]).series] == [
        "window",
        "full",
        "hso",
    ]
    with pytest.raises(UserError, match="no TFLOPs per example"):
        draw(pareto, [uncounted], x="flops")


def test_costs_of_several_powers_of_ten_are_on_a_logarithmic_axis() -> None:
    assert panel(pareto, RUNS).x.scale == "linear"
    wide = [*RUNS, costing("longmem", 3.1, None, 10**13)]
    assert panel(pareto, wide).x.scale == "log"


def test_seconds_of_two_machines_are_no_picture_but_flops_are() -> None:
    runs = three()
    runs[0] = changed(runs[0], provenance={"device": "cuda"})
    assert draw(pareto, runs, x="flops")
    with pytest.raises(UserError, match="one device"):
        draw(pareto, runs, x="seconds")


@pytest.mark.parametrize("changes", [{"split": "S1"}, {"context": "none"}, {"backbone": "gpt2"}])
def test_what_differs_otherwise_is_refused(changes: dict[str, str]) -> None:
    runs = [result("window"), result("full", **changes)]
    with pytest.raises(UserError, match="choose with --where"):
        draw(pareto, runs, x="flops")


def sized(method: str, split: str, tokens: int, value: float) -> Result:
    cost = {"flops": 1, "peak_bytes": 1, "seconds": 1.0, "tokens": tokens}
    return accurate(method, value, task="squad", split=split, cost={"contextualize": cost, "query": cost})


def test_lengths_of_one_benchmark_are_a_line_for_every_method() -> None:
    runs = [sized("full", "4k", 4000, 0.9), sized("full", "1k", 1000, 0.8), sized("window", "1k", 1000, 0.6)]
    drawn = panel(length, runs)
    assert {series.label: (series.x, series.y) for series in drawn.series} == {
        "full": ((1000.0, 4000.0), (0.8, 0.9)),
        "window": ((1000.0,), (0.6,)),
    }
    assert drawn.x.scale == "log2"
    with pytest.raises(UserError, match="one benchmark"):
        draw(length, [*runs, result("full")])


def by(metrics: dict[str, float], **changes: Any) -> Result:
    return result("full", metrics={name: metric(value, half=0.5) for name, value in metrics.items()}, **changes)


def test_positions_are_bins_in_their_order() -> None:
    stored = {
        "nats_per_token": 3.0,
        "nats_per_token_at_16k": 2.0,
        "nats_per_token_at_0k": 4.0,
        "nats_per_token_at_2k": 3.5,
    }
    drawn = panel(position, [by(stored)])
    assert drawn.series[0].y == (4.0, 3.5, 2.0)
    assert [text for _, text in drawn.x.ticks] == [f"0{TO}2k", f"2{TO}16k", "16k on"]
    with pytest.raises(UserError, match="hold no metric of accuracy by position"):
        draw(position, [by(stored)], metric="accuracy")
    with pytest.raises(UserError, match="hold no metric by position"):
        draw(position, three())


def test_reaches_are_bins_in_their_order() -> None:
    stored = {"accuracy": 0.7, "accuracy_1k": 0.6, "accuracy_512": 0.9, "accuracy_16k": 0.2}
    measure = {"name": "accuracy", "higher_is_better": True, "bounded": True}
    drawn = panel(reach, [by(stored, measure=measure)])
    assert drawn.series[0].y == (0.9, 0.6, 0.2)
    assert [text for _, text in drawn.x.ticks] == ["512", "1k", "16k"]
    turns = {"f1": 0.5, "f1_turn_2": 0.4, "hits_5": 0.3}
    with pytest.raises(UserError, match="hold no metric by reach"):
        draw(reach, [by(turns, measure={"name": "f1", "higher_is_better": True, "bounded": True})])


def test_differences_to_the_window_are_drawn_where_nothing_is_asked_for(tmp_path: Path) -> None:
    runs = [stored(tmp_path, method, {"a": value, "b": value}) for method, value in (("full", 1.0), ("window", 0.25))]
    drawn = draw(pareto, runs, baseline=None)
    (drawn_panel,) = drawn.panels
    assert {series.label: series.y for series in drawn_panel.series} == {"full": (0.75,), "window": (0.0,)}
    assert "level" in [guide.kind for guide in drawn_panel.guides]
    assert drawn_panel.y.label == "accuracy \N{MINUS SIGN} window (higher is better)"
    assert drawn.caption.startswith("Accuracy \N{MINUS SIGN} window against TFLOPs per example, n = ")
    assert "paired differences over 2 examples" in drawn.caption
    values = panel(pareto, runs, baseline=NONE)
    assert [series.y for series in values.series] == [(0.5,), (0.5,)]
    with pytest.raises(UserError, match="shares examples with full"):
        draw(pareto, runs[:1], baseline="full")


def test_a_line_of_the_baseline_is_the_zero_alone(tmp_path: Path) -> None:
    sizes = [{"cost": sized("full", "1k", 1000, 0.5).as_json()["cost"]}]
    runs = [stored(tmp_path, m, {"a": v}, **sizes[0]) for m, v in (("window", 0.0), ("full", 1.0))]
    assert [series.label for series in panel(length, runs, baseline=None).series] == ["full"]


def test_runs_on_other_examples_are_no_points_and_are_said(tmp_path: Path) -> None:
    books = dict.fromkeys("abc", 0.5)
    runs = [stored(tmp_path, method, books) for method in ("window", "full", "sliding")]
    runs += [stored(tmp_path, method, {"a": 0.9}) for method in ("hso", "evalm")]
    drawn = draw(pareto, runs, baseline=None)
    assert {series.label for series in drawn.panels[0].series} == {"window", "full", "sliding"}
    assert "n = 3 examples" in drawn.caption
    assert "left out: 2 of 5 runs on other examples (n = 1)" in drawn.caption


def test_at_most_eight_series_have_a_name_and_the_others_are_counted() -> None:
    runs = [costing(f"m{n}", 3.0 + n / 100, None, (20 - n) * 10**11) for n in range(12)]
    drawn = draw(pareto, runs)
    quiet = [series.label for series in drawn.panels[0].series if series.quiet]
    assert len(quiet) == 4
    assert "grey: 4 further methods" in drawn.caption
    assert all(label in drawn.notes for label in quiet)
    assert all(not series.intervals for series in drawn.panels[0].series if series.quiet)
    labelled = panel(pareto, runs, label=("m11", "m10"))
    assert [series.label for series in labelled.series if not series.quiet] == ["m10", "m11"]


def test_a_run_without_the_metric_is_said() -> None:
    values = {"nats_per_token": 3.0, "nats_per_token_at_0k": 4.0, "nats_per_token_at_1k": 3.5}
    runs = [by(values), result("hso")]
    assert "left out: 1 of 2 runs without a metric by position of the token" in draw(position, runs).caption
    of_metric = draw(pareto, runs, metric="nats_per_token_at_1k").caption
    assert "left out: 1 of 2 runs without nats_per_token_at_1k" in of_metric


def test_a_caption_is_two_sentences_and_a_legend(tmp_path: Path) -> None:
    runs = [stored(tmp_path, method, {"a": v, "b": v}) for method, v in (("full", 1.0), ("window", 0.25))]
    assert draw(pareto, runs, baseline=None).caption.count(". ") <= 2


def test_sizes_are_read_as_they_are_written() -> None:
    assert [thousands(text) for text in ("512", "1k", "64k")] == [512, 1024, 65536]
