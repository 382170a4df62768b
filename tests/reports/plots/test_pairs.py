from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from stored_examples import accurate, keep, line, of_tokens
from stored_runs import result

from contextlab.errors import UserError
from contextlab.harness.stored import Result
from contextlab.reports.filters import LeftOut
from contextlab.reports.frame import frame_of
from contextlab.reports.plots.chosen import PictureOptions
from contextlab.reports.plots.pairs import controls, scatter
from contextlab.reports.plots.picture import Picture


def draw(kind: Callable[..., Picture], runs: Sequence[Result], baseline: str | None = None) -> Picture:
    return kind(frame_of(runs), PictureOptions(baseline=baseline), LeftOut(len(runs)))


MINUS = "\N{MINUS SIGN}"


def right(folder: Path, method: str, values: dict[str, float]) -> Result:
    lines = [line(name, value, parts={"accuracy": [[value, 1, name]]}) for name, value in values.items()]
    return keep(folder, accurate(method, 0.5), lines)


def nats(folder: Path, method: str, values: dict[str, float], **changes: Any) -> Result:
    return keep(folder, result(method, **changes), [of_tokens(name, value, {}) for name, value in values.items()])


def test_every_shared_example_is_a_point(tmp_path: Path) -> None:
    runs = [nats(tmp_path, "window", {"a": 3.0, "b": 2.0, "c": 1.0}), nats(tmp_path, "full", {"b": 1.5, "a": 2.5})]
    (panel,) = draw(scatter, runs, "window").panels
    (cloud,) = panel.series
    assert sorted(zip(cloud.x, cloud.y, strict=True)) == [(2.0, 1.5), (3.0, 2.5)]
    assert (panel.x.label, panel.y.label) == ("nats per token, window", "nats per token, full")
    assert cloud.sizes == ()
    assert draw(scatter, runs, None).panels == (panel,)
    (turned,) = draw(scatter, runs, "full").panels
    assert (turned.x.label, turned.y.label) == (panel.y.label, panel.x.label)


def test_equal_points_are_one_with_their_number(tmp_path: Path) -> None:
    runs = [right(tmp_path, "window", {"a": 0, "b": 0, "c": 1}), right(tmp_path, "full", {"a": 1, "b": 1, "c": 1})]
    (cloud,) = draw(scatter, runs, "window").panels[0].series
    assert dict(zip(zip(cloud.x, cloud.y, strict=True), cloud.notes, strict=True)) == {(0.0, 1.0): "2", (1.0, 1.0): "1"}


def test_the_side_of_the_diagonal_says_who_is_worse(tmp_path: Path) -> None:
    lower = [nats(tmp_path, "window", {"a": 3.0}), nats(tmp_path, "full", {"a": 2.0})]
    assert "Below the diagonal: window is worse" in draw(scatter, lower, "window").caption
    higher = [right(tmp_path, "window", {"a": 0}), right(tmp_path, "full", {"a": 1})]
    assert "Above the diagonal: window is worse" in draw(scatter, higher, "window").caption


def test_a_scatter_needs_two_methods_with_shared_examples(tmp_path: Path) -> None:
    names = ("window", "full", "sinks")
    three = [nats(tmp_path, name, {"a": 1.0}) for name in names]
    with pytest.raises(UserError, match="two methods or more"):
        draw(scatter, three[:1])
    assert draw(scatter, three).panels[0].x.label.endswith(", window")
    assert len(draw(scatter, three, "full").panels[0].series) == 2
    apart = [nats(tmp_path, "window", {"x": 1.0}), nats(tmp_path, "full", {"y": 1.0})]
    with pytest.raises(UserError, match="shares examples with window"):
        draw(scatter, apart, "window")


def test_gains_are_positive_where_the_own_context_helps(tmp_path: Path) -> None:
    runs = [
        nats(tmp_path, method, {"a": base + shift, "b": base + shift + 1}, context=context)
        for method, base in (("window", 3.0), ("full", 2.0))
        for context, shift in (("own", 0.0), ("none", 0.5), ("wrong", 0.25))
    ]
    (panel,) = draw(controls, runs).panels
    gains = {series.label: series.x for series in panel.series}
    assert gains == {f"own {MINUS} none": pytest.approx((0.5, 0.5)), f"own {MINUS} wrong": pytest.approx((0.25, 0.25))}
    assert {text for _, text in panel.y.ticks} == {"window", "full"}
    assert all(
        low <= value <= high
        for series in panel.series
        for value, (low, high) in zip(series.x, series.intervals, strict=True)
    )  # type: ignore[misc]


def test_one_control_is_enough_and_none_is_refused(tmp_path: Path) -> None:
    own, wrong = (
        nats(tmp_path, "full", {"a": value}, context=context) for value, context in ((2.0, "own"), (2.5, "wrong"))
    )
    drawn = draw(controls, [own, wrong])
    assert [series.label for series in drawn.panels[0].series] == [f"own {MINUS} wrong"]
    assert drawn.caption.startswith("Gain in nats per token of the own context beyond another example's context, n = ")
    assert "Right of zero: the own context helps" in drawn.caption
    with pytest.raises(UserError, match="--context own,none,wrong"):
        draw(controls, [own])


def test_the_largest_gain_is_above_and_a_method_without_control_is_said(tmp_path: Path) -> None:
    runs = [
        nats(tmp_path, method, {"a": base + shift, "b": base + shift + 1}, context=context)
        for method, base, gain in (("window", 3.0, 0.1), ("full", 2.0, 0.3))
        for context, shift in (("own", 0.0), ("wrong", gain))
    ]
    drawn = draw(controls, [*runs, nats(tmp_path, "sinks", {"a": 1.0, "b": 1.0})])
    assert [text for _, text in drawn.panels[0].y.ticks] == ["full", "window"]
    assert "left out: 1 of 5 runs without a control" in drawn.caption
