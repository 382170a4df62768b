from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from stored_runs import changed, nats_of, result

from contextlab.errors import UserError
from contextlab.harness.stored import Result
from contextlab.reports.cells import Cell, Table
from contextlab.reports.entries import entries, of_common_seeds, peers
from contextlab.reports.layout import TableLayout
from contextlab.reports.tables import comparison

GAINS = {"window": 0.0, "method": 0.25, "full": 0.5}
"""What each method gains over the window, in nats; seeds differ by far more."""


def seed_of(method: str, seed: int) -> Result:
    """A run whose nats depend much on its seed, and in the same way for all methods."""
    nats = 3.0 + seed - GAINS[method]
    parts = nats_of({name: nats + spread for name, spread in (("a", -0.01), ("b", 0.0), ("c", 0.01))})
    return result(method, nats, parts=parts, provenance={"seed": seed})


def table(runs: list[Result], baseline: str = "full") -> Table:
    return comparison(runs, TableLayout(costs=("none",), baselines=(baseline,) if baseline else (), mean_seeds=True))


def cells(shown: Table, method: str) -> dict[str, Cell]:
    row = shown.rows.index((method,))
    return {column.name: shown.cells[row, n] for n, column in enumerate(shown.columns) if (row, n) in shown.cells}


def test_seeds_are_paired_by_their_number_and_missing_ones_are_named() -> None:
    shown = table([seed_of(m, seed) for m in ("window", "full") for seed in range(3)] + [seed_of("method", 2)])
    of_method = cells(shown, "method")
    assert of_method["share"].value == pytest.approx(0.5)
    assert of_method["nats_per_token - full"].value == pytest.approx(0.25)
    assert cells(shown, "window")["nats_per_token"].value == pytest.approx(4.0)
    assert any("mean ± standard deviation over seeds 0, 1, 2" in sentence.lower() for sentence in shown.sentences)
    assert "method has only seed 2; differences and shares are over the seeds that both methods have" in shown.legend


def test_the_order_in_which_seeds_were_started_changes_nothing() -> None:
    runs = list(itertools.product(GAINS, range(3)))
    known = None
    for attempt in range(6):
        random.Random(attempt).shuffle(runs)
        shown = table([seed_of(*run) for run in runs])
        numbers = {method: cells(shown, method) for method in GAINS}
        assert numbers["method"]["share"].value == pytest.approx(0.5)
        assert numbers["method"]["share"].deviation == pytest.approx(0.0)
        assert known in (None, numbers)
        known = numbers


def test_methods_without_a_common_seed_are_not_compared() -> None:
    shown = table([seed_of("window", 0), seed_of("full", 0), seed_of("method", 1)])
    assert cells(shown, "method").keys() == {"nats_per_token"}
    assert any("method has only seed 1" in sentence for sentence in shown.legend)


def test_only_methods_with_the_same_seeds_are_marked() -> None:
    def marks(runs: list[Result]) -> set[str]:
        shown = comparison(runs, TableLayout(costs=("none",), metrics=("nats_per_token",), mean_seeds=True, marks=True))
        return {cell.mark for cell in shown.cells.values()}

    same = [seed_of(method, seed) for method in ("window", "full") for seed in (0, 1)]
    steady = [
        changed(run, parts=nats_of({"a": n, "b": n + 0.1, "c": n + 0.2})) for run in same for n in [ORDER[run.method]]
    ]
    assert "best" in marks(steady)
    assert marks(steady[:-1]) == {""}


ORDER = {"window": 3.0, "full": 2.0}


def test_seeds_with_different_numbers_of_examples_are_refused() -> None:
    runs = [result("window", provenance={"seed": seed}, data={"examples": 3 + seed}) for seed in (0, 1)]
    with pytest.raises(UserError, match=r"window on pg22/S2 has .*\(3 of seed 0, 4 of seed 1\): run them"):
        entries(runs, mean_seeds=True)
    assert len(entries(runs, mean_seeds=False)) == 2


def test_entries_on_other_kinds_of_device_have_other_examples() -> None:
    devices = ("cpu (one)", "cpu (other)", "cuda (x)")
    amd, other, gpu = entries([result(provenance={"device": device}) for device in devices], mean_seeds=False)
    assert amd.examples == other.examples != gpu.examples


OTHERWISE: list[dict[str, Any]] = [
    {"task": "squad"},
    {"split": "S1"},
    {"context": "wrong"},
    {"backbone": "tiny-gpt2"},
    {"data": {"examples": 4}},
    {"provenance": {"dtype": "bfloat16"}},
    {"provenance": {"seed": 1}},
]


@pytest.mark.parametrize("change", OTHERWISE, ids=str)
def test_only_what_was_measured_alike_is_compared(change: dict[str, Any]) -> None:
    """Methods that differ in nothing else are peers; in any other dimension their numbers are not paired."""
    window, full, other = entries([result("window"), result("full"), result("sliding", **change)], mean_seeds=False)
    assert window.examples == full.examples != other.examples
    groups = peers([window, full, other])
    assert groups[window.examples].keys() == {"window", "full"}
    assert groups[other.examples].keys() == {"sliding"}


def test_runs_of_common_seeds_are_in_the_order_of_their_numbers() -> None:
    of = entries(
        [seed_of(m, s) for m, s in (("window", 7), ("full", 7), ("window", 1), ("full", 1), ("full", 3))],
        mean_seeds=True,
    )
    pairs = of_common_seeds(*of)
    assert [[run.provenance.seed for run in pair] for pair in pairs] == [[1, 1], [7, 7]]
