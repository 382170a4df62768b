from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stored_runs import changed, result, store, three

from contextlab.errors import UserError
from contextlab.harness.stored import Result
from contextlab.reports.filters import LeftOut, Limit, matching, select, selection_of, under
from contextlab.reports.frame import frame_of

TRAINED = "longmem(K=32) (trained 61.4k)"
ROWS: list[dict[str, Any]] = [
    {"method": "window", "name": "window", "task": "pg22/S2(tokens=8192)", "n": 3, "low": 0.5, "untrained": False},
    {"method": "window(N=512)", "name": "window", "task": "pg22/S1", "n": 4, "low": None, "untrained": False},
    {"method": "hso(loss=s[1])", "name": "hso", "task": "needle/4k", "n": 24, "low": 0.25, "untrained": False},
    {"method": "longmem (untrained)", "name": "longmem", "task": "pg22/S1", "n": 4, "low": 1.5, "untrained": True},
    {
        "method": "longmem(K=32) (trained 61.4k)",
        "name": "longmem",
        "task": "pg22/S1",
        "n": 4,
        "low": 1,
        "untrained": False,
    },
]
SETTINGS: list[dict[str, Any]] = [{}, {"N": 512}, {"loss": "s[1]"}, {"K": 64}, {"K": 32}]


@pytest.fixture
def frame() -> pandas.DataFrame:
    frame = pandas.DataFrame(ROWS)
    frame["benchmark"] = frame.task.str.partition("/")[0]
    frame["settings"] = pandas.Series(SETTINGS, dtype="object")
    return frame.astype({"n": "Int64", "method": "string", "task": "string", "untrained": "boolean"})


def rows(frame: pandas.DataFrame, *conditions: str) -> list[int]:
    return list(select(frame, conditions).index)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("task=needle/4k", [2]),
        ("task=pg22*", [0, 1, 3, 4]),
        ("task=pg22", [0, 1, 3, 4]),
        ("task!=pg22", [2]),
        ("method=window", [0]),
        ("method=window*", [0, 1]),
        ("method=longmem", [3]),
        ("method=longmem(K=32)", [4]),
        (f"method={TRAINED}", [4]),
        ("method=hso(loss=s[1])", [2]),
        ("method=hso", [2]),
        ("method=window|hso(loss=s[1])", [0, 2]),
        ("name=longmem", [3, 4]),
        ("n>3", [1, 2, 3, 4]),
        ("n >= 4", [1, 2, 3, 4]),
        ("n<4", [0]),
        ("n<=3.5", [0]),
        ("n=3", [0]),
        ("n=3.0|24", [0, 2]),
        ("low>0.2", [0, 2, 3, 4]),
        ("low=0.5", [0]),
        ("low!=0.5", [1, 2, 3, 4]),
        ("untrained=true", [3]),
        ("untrained!=true", [0, 1, 2, 4]),
        ("settings.K=32", [4]),
        ("settings.K>40", [3]),
    ],
)
def test_conditions(frame: pandas.DataFrame, condition: str, expected: list[int]) -> None:
    assert rows(frame, condition) == expected


def test_all_conditions_hold_in_any_order(frame: pandas.DataFrame) -> None:
    assert rows(frame, "task=pg22", "n>3", "name=longmem") == rows(frame, "name=longmem", "n>3", "task=pg22") == [3, 4]
    assert rows(frame) == list(frame.index)


@given(st.floats(-2, 30))
def test_an_order_and_its_opposite_share_out_what_is_there(bound: float) -> None:
    frame = pandas.DataFrame({"low": [0.5, None, 1.0, 24.0, 24.5]})

    def kept(condition: str) -> set[int]:
        try:
            return set(select(frame, [condition]).index)
        except UserError:
            return set()

    below, above = kept(f"low<{bound!r}"), kept(f"low>={bound!r}")
    assert below | above == {0, 2, 3, 4}
    assert not below & above


@given(st.text(alphabet="ab[]()=,.1 ", min_size=1, max_size=8))
def test_every_name_fits_itself(name: str) -> None:
    assert matching(name, [name], ["x"]) == [True]


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        ("tsak=pg22", "did you mean 'task'"),
        ("pg22", "write a column, a sign and a value"),
        ("task=", "write a column, a sign and a value"),
        ("n>many", "write one, as n>3"),
        ("task=squad", "No result fits task=squad: its values are needle/4k, pg22/S1"),
        ("settings.nothing=1", "all its values are missing"),
    ],
)
def test_mistakes_are_one_sentence(frame: pandas.DataFrame, condition: str, words: str) -> None:
    with pytest.raises(UserError) as caught:
        select(frame, [condition])
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_empty_frame_stays_empty() -> None:
    assert select(pandas.DataFrame({"n": []}), ["n>3"]).empty


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
def test_results_and_frame_are_of_the_same_runs(conditions: list[str], left: list[str], tmp_path: Path) -> None:
    results = selected(tmp_path, runs(), conditions)
    frame = frame_of(results)
    assert [run.method for run in results] == left
    assert list(dict.fromkeys(frame.run)) == [run.run_id for run in results]


def test_conditions_on_metrics_leave_the_others_out(tmp_path: Path) -> None:
    results = selected(tmp_path / "metric", runs(), ["metric=word*"])
    frame = frame_of(results)
    assert [list(run.metrics) for run in results] == [["word_perplexity"]] * 5
    assert set(frame.metric) == {"word_perplexity"}
    assert [run.method for run in selected(tmp_path / "again", runs(), ["measure=true", "value<3.01"])] == ["full"]


def test_names_are_those_of_what_is_left(tmp_path: Path) -> None:
    """Two forms of a method differ in a setting; alone, none needs it."""
    assert set(frame_of(selected(tmp_path / "all", runs()[3:], [])).method) == {"longmem(K=32)", "longmem(K=64)"}
    assert set(frame_of(selected(tmp_path / "again", runs()[3:], ["settings.K=64"])).method) == {"longmem"}


def test_a_condition_that_nothing_fits_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No result fits"):
        selected(tmp_path, runs(), ["task=squad"])


def stored(folder: Path, results: list[Result]) -> None:
    for run in results:
        store(folder / run.run_id, run)


def selected(folder: Path, results: list[Result], conditions: list[str]) -> list[Result]:
    """The results that a table shows, once they are stored in their order."""
    for number, run in enumerate(results):
        store(folder / str(number), run)
    return selection_of([folder], conditions, by_metric=True).results


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
    selection = selection_of([*folders, folders[0]], ["method!=sliding", "settings.K!=64"], [Limit.parse("state=1MiB")])
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
    assert [run.provenance.started for run in selection.results if run.run_id == again.run_id] == ["2027"]


def test_a_condition_on_metrics_leaves_no_run_out(tmp_path: Path) -> None:
    stored(tmp_path, runs())
    selection = selection_of([tmp_path], ["metric=word*"], by_metric=True)
    assert selection.left_out == LeftOut(5)
    assert len(selection.results) == 5


def test_where_runs_are_chosen_they_keep_their_measure(tmp_path: Path) -> None:
    stored(tmp_path, runs())
    with pytest.raises(
        UserError, match="leave the condition on metric out; table and plot choose metrics with --metric"
    ):
        selection_of([tmp_path], ["metric=word*"])
    for by_metric in (True, False):
        results = selection_of([tmp_path], ["value>10"], by_metric=by_metric).results
        assert results
        assert all((run.measure.name in run.metrics) is not by_metric for run in results)


@pytest.mark.parametrize(
    ("text", "most"),
    [
        ("state=32MB", 32e6),
        ("state = 32 MiB", 32 * 2**20),
        ("peak<=1.5GB", 1.5e9),
        ("flops<1TFLOP", 1e12),
        ("query=2e3GFLOPs", 2e12),
        ("seconds=3min", 180.0),
    ],
)
def test_limits_have_units(text: str, most: float) -> None:
    assert Limit.parse(text).most == pytest.approx(most)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("state", "is no limit"),
        ("state=many", "is no limit"),
        ("state=1.2.3MB", "is no limit"),
        ("state=.MB", "is no limit"),
        ("stat=3MB", "did you mean 'state'"),
        ("state=3TFLOP", "There is no unit of state 'TFLOP'"),
        ("state=3", "There is no unit of state ''"),
    ],
)
def test_a_mistake_is_one_sentence(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Limit.parse(text)


def test_only_what_costs_no_more_is_left() -> None:
    large = result("large", state={"bytes": 2**21, "floats": 1, "tokens": 1})
    runs = [*three(), large, result("stateless", state=None)]
    assert [run.method for run in under(runs, [Limit.parse("state=1MiB")])] == ["window", "sliding", "full"]
    assert under(runs, []) == runs
    assert under(runs, [Limit.parse("flops=2.5TFLOP"), Limit.parse("state=3MB")]) == runs[:4]
    with pytest.raises(UserError, match="No result is under state=1kB: raise the limit"):
        under(runs, [Limit.parse("state=1kB")])


@given(st.floats(0, 1e9), st.floats(0, 1e9))
def test_a_higher_limit_leaves_no_fewer(a: float, b: float) -> None:
    sizes = [result(str(n), state={"bytes": 10**n, "floats": 1, "tokens": 1}) for n in range(9)]
    fewer, more = ({run.method for run in sizes if Limit("state", most, "").holds(run)} for most in sorted((a, b)))
    assert fewer <= more


def test_nothing_is_said_where_every_run_is_shown() -> None:
    assert LeftOut(31).sentence == ""
    assert LeftOut(31).also(0, "by method!=closed-book") == LeftOut(31)


def test_every_filter_says_how_many_runs_it_left_out() -> None:
    left_out = LeftOut(31).also(7, "by settings.M!=0").also(0, "by n>3").also(2, "by method!=closed-book")
    assert left_out.sentence == "Left out: 7 of 31 runs by settings.M!=0, 2 by method!=closed-book"
    assert LeftOut(1).also(1, "unfinished").sentence == "Left out: 1 of 1 run unfinished"
