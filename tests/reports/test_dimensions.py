from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from stored_runs import result

from contextlab.reports.dimensions import latest, started


@given(st.permutations(range(4)))
def test_of_equal_results_the_one_started_last_is_kept_in_any_order(order: list[int]) -> None:
    runs = [result(method, run_id=f"{method}-{n % 2}") for n, method in enumerate(("window", "full") * 2)]
    kept = latest([runs[n] for n in order])
    assert [(words["method"], started(run)) for words, run in kept] == [
        (run.method, started(run)) for run in sorted(runs[2:], key=lambda run: runs.index(run) % 2)
    ]
