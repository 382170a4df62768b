from __future__ import annotations

import pytest
from stored_runs import result, three

from contextlab.errors import UserError
from contextlab.reports import costs
from contextlab.reports.layout import TableLayout
from contextlab.reports.tables import comparison


def names(*words: str) -> list[str]:
    return [cost.name for cost in costs.selected(words)]


def test_words_name_groups_or_single_costs() -> None:
    assert names("flops") == ["TFLOPs contextualize", "TFLOPs query"]
    assert names("query_flops", "state") == ["TFLOPs query", "state MiB"]
    assert names("query") == ["TFLOPs query", "seconds query", "joules query", "tokens query"]
    assert names("train") == ["TFLOPs train", "seconds train", "tokens train"]
    assert names("none") == names() == []
    assert {"peak MiB", "seconds", "state MiB", *names("train", "flops")} == set(names("all"))


def test_an_unknown_cost_suggests_another() -> None:
    with pytest.raises(UserError, match="did you mean 'flops'"):
        costs.selected(["flps"])


def test_every_single_cost_is_a_column_of_the_frame() -> None:
    from contextlab.reports.frame import COLUMNS

    singles = {cost.groups[0] for cost in costs.CATALOGUE} - {"seconds", "peak_bytes"}
    assert singles <= COLUMNS.keys()


def test_energy_is_a_column_where_a_gpu_counted_it() -> None:
    layout = TableLayout(costs=("joules",))
    assert not [column for column in comparison(three(), layout).columns if column.kind == "cost"]
    cost = {"flops": 1, "peak_bytes": 1, "seconds": 1.0, "tokens": 1}
    joules = {"full": 30.5, "window": 20.0}
    gpu = [result(name, cost={"query": {**cost, "joules": energy}}) for name, energy in joules.items()]
    costs_table = comparison(gpu, layout)
    (number,) = (n for n, column in enumerate(costs_table.columns) if column.kind == "cost")
    assert (costs_table.columns[number].name, costs_table.columns[number].unit) == ("joules query", "J")
    assert [cell.value for cell in costs_table.column(number)] == [30.5, 20.0]


def test_by_default_a_table_has_few_costs() -> None:
    shown = [column.name for column in comparison(three()).columns]
    assert shown == ["nats_per_token", "share", "TFLOPs query", "state MiB"]
    assert [column.name for column in comparison(three(), TableLayout(costs=("none",))).columns] == shown[:2]


def test_what_a_processor_and_a_gpu_measured_has_columns_of_its_own() -> None:
    """FLOPs and state do not depend on the machine; seconds and peak memory do."""
    gpu = result("full", provenance={"device": "cuda (H100)"})
    costs_table = comparison([result("full"), gpu], TableLayout(costs=("all",)))
    shown = {column.name: n for n, column in enumerate(costs_table.columns)}
    assert {"seconds cpu", "seconds cuda", "peak MiB cpu", "peak MiB cuda", "TFLOPs query", "state MiB"} <= shown.keys()
    assert [len(costs_table.column(shown[name])) for name in ("seconds cpu", "seconds cuda", "state MiB")] == [1, 1, 2]
    assert len(costs_table.rows) == 2


def test_a_table_of_seconds_says_where_threads_or_examples_side_by_side_differ() -> None:
    alone = result("window", provenance={"threads": 2})

    def sentences(*costs: str, threads: int = 1, batch: int | None = 8) -> list[str]:
        others = result("full", provenance={"threads": threads, "batch": batch})
        table = comparison([alone, others], TableLayout(costs=costs))
        return [line for line in table.legend if line.startswith("Seconds")]

    assert sentences("query_seconds") == [
        "Seconds were measured with 1 (full) and 2 (window) threads",
        "Seconds were measured with 1 (window) and 8 (full) examples side by side",
    ]
    assert sentences("flops", "train_seconds", "peak") == []
    assert sentences("query_seconds", threads=2, batch=None) == []
