"""Runs of schema 1 are read, and every number is the one that they store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas
import pytest
from stored_runs import json_lines, line_of, result

from contextlab.harness import store
from contextlab.reports.frame import COLUMNS, frame_of

STORED = Path(__file__).parents[2] / "results"
FIRST = [path.parent for path in sorted(STORED.rglob("summary.json")) if json.loads(path.read_bytes())["schema"] == 1]


def leaves(value: Any, name: str = "") -> dict[str, Any]:
    """Everything in a JSON value by its dotted name."""
    if isinstance(value, dict) and value:
        return {key: leaf for k, v in value.items() for key, leaf in leaves(v, f"{name}.{k}").items()}
    return {name: value}


@pytest.mark.parametrize("folder", FIRST, ids=lambda folder: folder.name)
def test_a_stored_run_keeps_all_that_it_says(folder: Path) -> None:
    before, after = (
        json.loads((folder / "summary.json").read_bytes()),
        store.read_result(folder).as_json(),
    )
    assert leaves({**before, "schema": 2}).items() <= leaves(after).items()
    manifest = json.loads((folder / "manifest.json").read_bytes())
    assert after["method_weights"] == manifest["identity"]["method_weights"]
    kept = store.read_manifest(folder)
    assert kept is not None
    assert kept.as_json().items() >= {**manifest, "schema": 2, "provenance": kept.as_json()["provenance"]}.items()
    lines = {line["id"]: line for line in map(json.loads, (store.content(folder) or b"").splitlines())}
    for number, line in enumerate(store.lines(folder)):
        old, new = lines.pop(line.id), line.as_json()
        assert old["record"] == new["record"]
        assert (old["quality"], old["parts"]) == (new["quality"], new["parts"])
        assert leaves(old["cost"]).items() <= leaves(new["cost"]).items()
        assert line.index == old.get("index", number)
    assert lines == {}


@pytest.mark.parametrize("folder", FIRST, ids=lambda folder: folder.name)
def test_every_stored_number_stands_in_the_frame(folder: Path) -> None:
    raw = json.loads((folder / "summary.json").read_bytes())
    frame = frame_of([store.read_result(folder)]).set_index("metric")
    for metric, numbers in raw["metrics"].items():
        for name, number in numbers.items():
            assert same(frame.loc[metric, name], number)
    for column in COLUMNS:
        part, _, key = column.partition("_")
        if part in raw["cost"]:
            assert same(frame[column].iloc[0], (raw["cost"][part] or {}).get(key))
        elif part == "state":
            assert same(frame[column].iloc[0], raw["state"].get(key))


def same(shown: Any, stored: float | None) -> bool:
    return bool(pandas.isna(shown)) if stored is None else bool(shown == stored)


def early(folder: Path, **changes: Any) -> dict[str, Any]:
    """Store a run as the first version did."""
    content: dict[str, Any] = {**result().as_json(), "schema": 1, **changes}
    for name in ("measure", "changed", "measured", "untrained", "twin", "method_weights", "history"):
        del content[name]
    content["cost"] = {"query": {"flops": 5, "peak_bytes": None, "seconds": 1.0, "tokens": 3}}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "summary.json").write_text(json.dumps(content))
    return content


def test_what_the_first_version_left_out_has_its_meaning(tmp_path: Path) -> None:
    early(tmp_path)
    read = store.read_result(tmp_path)
    assert (read.measure.name, read.measure.higher_is_better) == ("nats_per_token", None)
    assert (read.changed, read.untrained, read.twin, read.history, read.method_weights) == ([], False, None, None, None)
    assert read.cost.query is not None
    assert read.cost.query.timed_while_counting
    assert (read.cost.train, read.cost.contextualize) == (None, None)


def test_the_learned_weights_stand_in_the_manifest(tmp_path: Path) -> None:
    folder = early(tmp_path)
    manifest = {
        "schema": 1,
        "run_id": "x",
        "identity": {"method_weights": "d" * 64},
        "provenance": folder["provenance"],
    }
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    assert store.read_result(tmp_path).method_weights == "d" * 64


def test_examples_without_an_index_are_in_the_order_of_the_file(tmp_path: Path) -> None:
    lines = [{name: value for name, value in line_of(id_, 1.0).items() if name != "index"} for id_ in ("b", "a", "b")]
    (tmp_path / "examples.jsonl").write_text(json_lines(*lines, line_of("c", 1.0, index=7)))
    assert [(line.id, line.index) for line in store.lines(tmp_path)] == [("b", 0), ("a", 1), ("c", 7)]
