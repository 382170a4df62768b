from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stored_examples import accurate, metric
from stored_runs import changed, three

from contextlab.errors import UserError
from contextlab.harness.stored import Result
from contextlab.reports.break_even import CostLine
from contextlab.reports.filters import LeftOut
from contextlab.reports.frame import frame_of
from contextlab.reports.plots.chosen import PictureOptions
from contextlab.reports.plots.picture import Picture
from contextlab.reports.plots.questions import break_even, crossings


def draw(runs: Sequence[Result], x: str = "flops", contexts: int = 1) -> Picture:
    return break_even(frame_of(runs), PictureOptions(x=x, contexts=contexts), LeftOut(len(runs)))


positive = st.floats(0.01, 100)


def run_of(method: str, context: float, query: float, questions: int = 1) -> Result:
    def cost(teraflops: float) -> dict[str, Any]:
        return {"flops": round(teraflops * 1e12), "peak_bytes": 1, "seconds": teraflops, "tokens": 10}

    costs = {"contextualize": cost(context), "query": cost(query)}
    return accurate(method, 0.5, metrics={"accuracy": metric(0.5, n=3 * questions)}, cost=costs)


def test_the_context_is_shared_by_all_its_questions() -> None:
    (panel,) = draw([run_of("full", 8.0, 4.0, questions=4)], "flops").panels
    (line,) = panel.series
    assert line.x[:3] == (1.0, 2.0, 4.0)
    assert line.y[:3] == pytest.approx((9.0, 5.0, 3.0))


@pytest.mark.parametrize("questions", [1, 4])
def test_examples_that_were_skipped_have_no_questions(questions: int) -> None:
    skipped = changed(run_of("full", 8.0, 4.0, questions), data={"examples": 5, "skipped": 2})
    (line,) = draw([skipped], "flops").panels[0].series
    assert line.y[:2] == pytest.approx((8.0 + 4.0 / questions, 4.0 + 4.0 / questions))


def test_what_reads_its_context_for_every_question_pays_for_it_every_time() -> None:
    again = changed(run_of("full", 8.0, 4.0, questions=4), split="S2(turns=prompts)")
    (line,) = draw([again], "flops").panels[0].series
    assert line.y[:3] == pytest.approx((3.0, 3.0, 3.0))


@given(st.lists(st.tuples(positive, positive), min_size=1, max_size=6), st.floats(1, 1000))
def test_between_two_crossings_one_method_is_the_cheapest(pairs: list[tuple[float, float]], number: float) -> None:
    costs = {str(n): CostLine(*pair) for n, pair in enumerate(pairs)}
    changes = crossings(costs)
    cheapest = min(costs, key=lambda name: costs[name].each(1.0 + 1e-12))
    for at, before, after in changes:
        if at <= number:
            assert costs[before].each(at) == pytest.approx(costs[after].each(at), rel=1e-6)
            cheapest = after
    assert costs[cheapest].each(number) <= min(line.each(number) for line in costs.values()) * (1 + 1e-6)


def test_a_break_even_point_is_marked_and_said() -> None:
    picture = draw([run_of("window", 1.0, 3.0), run_of("full", 22.0, 1.0)], "flops")
    (guide,) = picture.panels[0].guides
    assert guide.x == pytest.approx((10.5,))
    assert "For more than 10 questions full is cheaper than window." in picture.caption


def test_training_is_counted_once_for_all_contexts() -> None:
    training = {"flops": 100 * 10**12, "peak_bytes": None, "seconds": 50.0, "tokens": 5}
    trained = changed(run_of("evalm", 8.0, 4.0), cost={"train": training})
    alone, shared = (draw([trained], contexts=count) for count in (1, 10))
    assert alone.panels[0].series[0].y[0] == pytest.approx(112.0)
    assert shared.panels[0].series[0].y[0] == pytest.approx(22.0)
    assert "training is counted once for 1 context" in alone.caption.lower()
    assert "once for 10 contexts" in shared.caption
    assert draw([trained], "seconds").panels[0].series[0].y[0] == pytest.approx(62.0)


def test_a_method_that_pays_off_late_is_drawn_until_then() -> None:
    training = {"flops": 10**18, "peak_bytes": None, "seconds": 1.0, "tokens": 5}
    trained = changed(run_of("evalm", 8.0, 1.0), cost={"train": training})
    picture = draw([trained, run_of("full", 8.0, 2.0)])
    assert "For more than 1,000,000 questions evalm (trained 5) is cheaper than full" in picture.caption.replace(
        "evalm, trained", "evalm (trained 5)"
    )
    assert picture.panels[0].series[0].x[-1] >= 10**6


def test_seconds_are_drawn_as_flops_are() -> None:
    run = run_of("full", 8.0, 4.0)
    assert draw([run], "seconds").panels[0].series[0].y[0] == pytest.approx(12.0)
    assert "seconds per question" in draw([run], "seconds").panels[0].y.label


def test_what_has_no_cost_per_question_is_refused() -> None:
    with pytest.raises(UserError, match="choose a task with questions"):
        draw(three(), "flops")
    with pytest.raises(UserError, match="choose flops or seconds"):
        draw(three(), "state")
