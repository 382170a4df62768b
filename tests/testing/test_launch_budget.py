"""A budget of kernel launches, beside those of transformers, for every method that reads without gradients.

Counts are those of four layers in bfloat16, the type that a backbone has on a GPU.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from bench_modules import bench_module

from contextlab.planning.shaped import built_in

RESULTS = Path(__file__).parents[2] / "results/benches"
PLAIN = "transformers"
BUDGET = {"block": 2.0, "token": 2.0}
"""The most launches, as multiples of those of transformers."""
OTHER: dict[str, dict[str, float]] = {
    "full": {"block": 1.1, "token": 1.1},
    "retrieval": {"block": 3.0},  # it encodes a block and looks up its chunks for every query
    "snapkv": {"block": 3.0},  # it scores tokens by attention that a fused kernel does not give, and moves keys by head
    "h2o": {"block": 3.0},  # the same
    "longmem": {"block": 3.0},  # its side network runs beside the backbone
    "drop": {"block": 3.0},  # it reads a second time what stays of a block
    "ultragist": {"block": 3.0},  # a block has several windows, of which each is a pass of its own
}
MORE = 1.01
"""Of the stored launches of four layers: other versions of torch may have some more."""
UNCOUNTED = {
    "least-squares": "it writes texts of its own after a chunk, whose tokens have each a pass",
    "hso": "it computes gradients while it reads",
    "dynamic-eval": "it computes gradients while it reads",
    "finetune": "it computes gradients while it reads",
    "cartridge": "it computes gradients while it reads",
    "press": "it keeps what a library beside this one chooses, row by row",
    "composed": "it launches what both of its methods do",
    **dict.fromkeys(("bm25", "dense"), "it searches on the host, and reads what was found anew"),
}
COUNTED = [name for name in built_in() if name not in UNCOUNTED]
Rows = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def launches() -> ModuleType:
    return bench_module("launches")


@pytest.fixture(scope="module")
def rows(launches: ModuleType) -> Rows:
    return {row["method"]: row for row in launches.measure(",".join(COUNTED), 4, torch.bfloat16)}


@pytest.mark.parametrize("name", COUNTED)
@pytest.mark.parametrize("unit", BUDGET)
def test_launches_stay_within_the_budget(rows: Rows, name: str, unit: str) -> None:
    most = {**BUDGET, **OTHER.get(name, {})}[unit]
    assert rows[name][unit]["launches"] <= most * rows[PLAIN][unit]["launches"]


@pytest.mark.parametrize("name", [PLAIN, *COUNTED])
def test_a_silent_block_never_waits_and_a_token_once_for_its_choice(rows: Rows, name: str) -> None:
    assert rows[name]["block"]["waits"] == 0
    assert rows[name]["token"]["waits"] == 1


def test_a_layer_of_full_attention_launches_no_more_than_one_of_transformers(launches: ModuleType) -> None:
    """What a pass does once may hide in few layers what every layer does."""
    each = [{row["method"]: row for row in launches.measure("full", layers, torch.bfloat16)} for layers in (1, 2)]
    for unit in BUDGET:
        full, plain = (each[1][name][unit]["launches"] - each[0][name][unit]["launches"] for name in ("full", PLAIN))
        assert full <= plain


def test_the_command_gives_a_reason_for_methods_that_compute_gradients(
    launches: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["launches.py", "--layers", "1", "--methods", "hso", "--dtype", "float32"])
    launches.main()
    printed = json.loads(capsys.readouterr().out)
    assert (printed["layers"], printed["dtype"]) == (1, "float32")
    rows = printed["results"]
    assert [row["method"] for row in rows] == [PLAIN, "hso"]
    assert (rows[1]["method"], rows[1]["block"], rows[1]["token"]) == ("hso", None, None)
    assert "gradients" in rows[1]["reason"]


@pytest.mark.parametrize("name", [PLAIN, *COUNTED])
def test_launches_are_those_that_were_stored(rows: Rows, name: str) -> None:
    """One more operation of every layer is 2 %, which most budgets have room for."""
    stored = {row["method"]: row for row in json.loads((RESULTS / "launches_4.json").read_text())["results"]}
    for unit in BUDGET:
        assert rows[name][unit]["launches"] <= MORE * stored[name][unit]["launches"]


def test_the_stored_table_has_every_method_with_the_layers_of_smollm2() -> None:
    stored = json.loads((RESULTS / "launches.json").read_text())
    assert stored["layers"] == 30
    assert [row["method"] for row in stored["results"]] == [PLAIN, *built_in()]
    for row in stored["results"]:
        counted = row["method"] not in UNCOUNTED
        assert (row["block"] is not None) == counted
        assert counted or row["reason"]
        assert not counted or math.isfinite(row["token"]["launches"])
