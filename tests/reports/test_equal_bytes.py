from __future__ import annotations

import pytest
from stored_runs import changed, nats_of, result

from contextlab.errors import UserError
from contextlab.harness.stored import Result
from contextlab.reports.cells import Table
from contextlab.reports.layout import TableLayout
from contextlab.reports.render import render
from contextlab.reports.tables import comparison

TEXTS = {name: 0.01 * n for n, name in enumerate("abcdefgh")}


def keeping(method: str, mib: float, nats: float, **changes: object) -> Result:
    """A run that leaves a state of this size; its nats differ by text, and from those of others by a little more."""
    parts = nats_of({text: nats + spread * (1 + nats / 10) for text, spread in TEXTS.items()})
    size = {"bytes": int(mib * 2**20), "floats": 1, "tokens": 1}
    return result(method, nats, parts=parts, state=size, **changes)


def windows() -> list[Result]:
    """Longer windows are better, but for the longest one."""
    sizes = {256: (10, 3.2), 1024: (45, 3.1), 2048: (90, 3.15)}
    return [keeping("sliding", mib, nats, method_config={"N": n}, changed=["N"]) for n, (mib, nats) in sizes.items()]


def table(runs: list[Result], baseline: str = "sliding*", **layout: object) -> Table:
    return comparison(runs, TableLayout(costs=("none",), baselines=(baseline,), **layout))  # type: ignore[arg-type]


def cells(compared: Table, method: str) -> dict[str, str]:
    """The cells of a row by the last word of their column: `sliding*` is the difference to the windows."""
    row = compared.rows.index((method,))
    names = {n: column.name.split(" - ")[-1].split(": ")[-1] for n, column in enumerate(compared.columns)}
    return {name: compared.text(row, n) for n, name in names.items() if (row, n) in compared.cells}


def test_every_method_is_compared_with_the_best_that_keeps_no_more_bytes() -> None:
    sizes = {"small": 44, "nearly": 44.8, "equal": 45, "large": 500}
    compared = table([*windows(), *(keeping(name, mib, 3.0) for name, mib in sizes.items())])
    assert [cells(compared, name)["which"] for name in sizes] == [
        "sliding(N=256)",
        "sliding(N=1024)",
        "sliding(N=1024)",
        "sliding(N=1024)",
    ]
    assert cells(compared, "small")["sliding*"].startswith("-0.20")
    assert cells(compared, "large")["sliding*"].startswith("-0.10")


def test_the_windows_are_their_own_baselines() -> None:
    compared = table([*windows(), keeping("memory", 45, 3.0)])
    assert all(
        cells(compared, f"sliding(N={n})").keys() == {"nats_per_token", "sliding*"}
        and cells(compared, f"sliding(N={n})")["sliding*"] == "+0.000"
        for n in (256, 1024, 2048)
    )


def test_a_method_without_a_seed_of_its_window_has_no_difference() -> None:
    memory = keeping("memory", 45, 3.0, provenance={"seed": 1})
    compared = comparison([*windows(), memory], TableLayout(costs=("none",), baselines=("sliding*",), mean_seeds=True))
    assert cells(compared, "memory").keys() <= {"nats_per_token", "which"}


def test_without_the_tasks_measure_there_is_no_best_window() -> None:
    runs = [keeping("sliding", 45, 3.1), keeping("memory", 45, 3.0)]
    measure = {"name": "f1", "higher_is_better": True, "bounded": True}
    compared = table([changed(run, measure=measure) for run in runs], metrics=("nats_per_token",))
    assert cells(compared, "memory").keys() == {"nats_per_token"}


def test_what_keeps_less_than_every_window_has_no_difference() -> None:
    compared = table([*windows(), keeping("gist", 9, 3.0)])
    assert cells(compared, "gist").keys() == {"nats_per_token"}


def test_what_has_learned_nothing_is_not_compared_with_windows_that_have() -> None:
    cost = {"train": {"flops": 1, "peak_bytes": None, "seconds": 1.0, "tokens": 1}}
    learned = keeping("sliding", 40, 3.05, method_config={"rank": 8}, changed=["rank"], cost=cost)
    compared = table([*windows(), learned, keeping("plain", 45, 3.0), keeping("memory", 45, 3.0, cost=cost)])
    trained = next(row[0] for row in compared.rows if row[0].startswith("memory"))
    assert cells(compared, "plain")["which"] == "sliding(N=1024)"
    assert cells(compared, trained)["which"].startswith("sliding(rank=8)")


def test_p_values_are_corrected_for_the_number_of_methods() -> None:
    """The largest of a family is as it is; the least is multiplied by their number."""
    noise = dict(zip(TEXTS, (-0.10, 0.09, -0.05, 0.02, -0.07, 0.04, -0.02, 0.01), strict=True))
    near = result(
        "near",
        3.09,
        parts=nats_of({text: 3.09 + TEXTS[text] * 1.31 + noise[text] for text in TEXTS}),
        state={"bytes": 45 * 2**20, "floats": 1, "tokens": 1},
    )
    alone = cells(table([*windows(), near]), "near")["p"]
    of_two = cells(table([*windows(), near, changed(near, method="nearer")]), "near")["p"]
    assert 0.05 < float(alone) < 0.5
    assert float(of_two) == pytest.approx(2 * float(alone), abs=2e-3)


def test_a_clear_difference_has_a_p_value_below_the_least_that_is_written() -> None:
    assert cells(table([*windows(), keeping("memory", 45, 2.0)]), "memory")["p"] == "<0.001"


def test_the_caption_says_what_the_columns_show() -> None:
    caption = table([*windows(), keeping("memory", 45, 3.0)]).caption
    assert "at most 1 % more bytes, named under which; p: of this difference, corrected by Holm's procedure" in caption


def test_the_task_s_measure_says_which_is_the_best() -> None:
    measure = {"name": "score", "higher_is_better": True, "bounded": False}
    metric = {"low": None, "high": None, "n": 3}
    runs = [
        changed(run, measure=measure, metrics={"score": {"value": score, **metric}})
        for run, score in zip([*windows(), keeping("memory", 100, 3.0)], (1.0, 2.0, 3.0, 4.0), strict=True)
    ]
    assert cells(table(runs), "memory")["which"] == "sliding(N=2048)"


def test_a_measure_without_a_direction_gives_no_baseline() -> None:
    measure = {"name": "nats_per_token", "higher_is_better": None, "bounded": False}
    runs = [changed(run, measure=measure) for run in [*windows(), keeping("memory", 45, 3.0)]]
    assert "which" not in cells(table(runs), "memory")


def test_a_method_without_a_state_has_no_baseline() -> None:
    compared = table([*windows(), changed(keeping("memory", 45, 3.0), state=None)])
    assert "which" not in cells(compared, "memory")


def test_differences_to_windows_stand_beside_those_to_controls() -> None:
    memory = keeping("memory", 45, 3.0)
    compared = table([*windows(), memory, changed(memory, context="wrong")], controls=True)
    assert {"wrong", "which"} <= cells(compared, "memory").keys()


def test_the_name_of_the_window_is_a_text_in_latex() -> None:
    lines = render(table([*windows(), keeping("memory", 45, 3.0)]), "latex").splitlines()
    row = next(line for line in lines if line.startswith("memory"))
    assert row.endswith(r"\textless{}0.001 & sliding(N=1024) \\")


def test_a_pattern_that_names_no_method_is_refused() -> None:
    with pytest.raises(UserError, match="No method in these results fits slide"):
        table(windows(), baseline="slide*")
