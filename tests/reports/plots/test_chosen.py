from __future__ import annotations

import pytest
from stored_runs import result

from contextlab.errors import UserError
from contextlab.harness.stored import Result
from contextlab.reports.filters import LeftOut
from contextlab.reports.frame import frame_of
from contextlab.reports.names import Names
from contextlab.reports.plots.chosen import (
    MOST,
    PictureOptions,
    equal_examples,
    named,
    ranked,
    unique_titles,
    usual_baseline,
)


def sized(method: str, examples: int, data: str = "a", task: str = "pg22") -> Result:
    return result(method, task=task, data={"examples": examples, "sha256": data * 64})


def kept(runs: list[Result]) -> tuple[list[str], str]:
    rows, left_out = equal_examples(frame_of(runs), LeftOut(len(runs)))
    return sorted(set(rows["method"])), left_out.sentence


def test_only_runs_on_the_examples_that_most_have_are_compared() -> None:
    runs = [sized("window", 3), sized("full", 3), sized("hso", 22), sized("evalm", 1)]
    assert kept(runs) == (["full", "window"], "Left out: 2 of 4 runs on other examples (n = 1, 22)")
    assert kept([sized("window", 3), sized("full", 22)])[0] == ["full"]
    assert kept([sized("window", 3), sized("full", 3)]) == (["full", "window"], "")


def test_every_task_has_its_own_examples() -> None:
    runs = [sized("window", 3), sized("full", 3), sized("window", 5, task="pg19"), sized("full", 5, task="pg19")]
    rows, left_out = equal_examples(frame_of(runs), LeftOut(4))
    assert rows["run"].nunique() == 4
    assert not left_out.sentence


@pytest.mark.parametrize(
    ("methods", "baseline"),
    [(["full", "window"], "window"), (["full", "sinks"], "full"), (["full"], None), (["window"], None)],
)
def test_the_usual_baseline_is_the_window_or_the_first(methods: list[str], baseline: str | None) -> None:
    assert usual_baseline(frame_of([result(method) for method in methods])) == baseline


def test_a_window_without_settings_is_the_usual_baseline() -> None:
    runs = [result("window", method_config={"N": 256}, changed=["N"]), result("window", method_config={})]
    assert usual_baseline(frame_of(runs)) == "window"


def test_no_two_methods_have_one_name() -> None:
    names = Names({"method": {"longmem(K=1)": "LongMem", "longmem(K=2)": "LongMem"}})
    titles = unique_titles(["longmem(K=1)", "longmem(K=2)", "window"], names)
    assert len(set(titles.values())) == 3
    assert all(title.startswith("LongMem") for label, title in titles.items() if label != "window")


def test_eight_methods_have_a_name_and_of_each_the_best_form_comes_first() -> None:
    order = [(f"evalm-{n}", "evalm") for n in range(9)] + [("window", "window"), ("full", "full")]
    chosen = named(order, PictureOptions())
    assert len(chosen) == MOST
    assert chosen[:3] == ["evalm-0", "window", "full"]
    assert named(order, PictureOptions(), ["evalm-8"])[0] == "evalm-8"
    assert named(order, PictureOptions(label=("full", "evalm-*"))) == ["full", *(f"evalm-{n}" for n in range(9))]
    with pytest.raises(UserError, match="did you mean 'full'"):
        named(order, PictureOptions(label=("fulll",)))


def test_the_best_are_those_of_the_better_direction() -> None:
    values = {"a": ("a", 1.0), "b": ("b", 2.0)}
    assert ranked(values, True) == [("b", "b"), ("a", "a")]
    assert ranked(values, False) == [("a", "a"), ("b", "b")]
    assert ranked({"b": ("b", 2.0), **values}, None)[0] == ("b", "b")
