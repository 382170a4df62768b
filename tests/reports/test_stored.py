from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import pytest
from stored_runs import json_lines, line_of, result, store, three

from contextlab import seals
from contextlab.benchmarks.task import Part
from contextlab.errors import UserError
from contextlab.reports.stored import gc_paused, load_results, unfinished


def resealed(**changes: Any) -> str:
    """A summary with wrong fields under a right seal."""
    return seals.sealed({**result().as_json(), **changes})


def test_results_are_found_at_any_depth(tmp_path: Path) -> None:
    results = three(data={"examples": 1})
    folders = [tmp_path / subfolder for subfolder in ("a", "b/c", "d/e/f")]
    for folder, run in zip(folders, results, strict=True):
        store(folder, run, json_lines(line_of("x", 0.5)))
    parts = {"x": {"quality": [Part(0.5, 1.0, "x")]}}
    assert load_results(tmp_path) == [run.placed(folder, parts) for run, folder in zip(results, folders, strict=True)]


def test_a_last_line_that_was_cut_off_does_not_hide_a_table(tmp_path: Path) -> None:
    store(tmp_path / "run", result(data={"examples": 1}), json_lines(line_of("a", 1.0)) + '{"id": "b", "qual')
    assert [list(run.parts or {}) for run in load_results(tmp_path)] == [["a"]]


def test_a_run_with_fewer_lines_than_examples_is_named(tmp_path: Path) -> None:
    store(tmp_path / "run", result(data={"examples": 2}), json_lines(line_of("a", 1.0)))
    with pytest.raises(UserError, match=r"examples\.jsonl has 1 of the 2 examples of its run: run its benchmark again"):
        load_results(tmp_path)


def test_runs_behind_symbolic_links_are_seen_once(tmp_path: Path) -> None:
    store(tmp_path / "elsewhere" / "run", result("full"))
    store(tmp_path / "runs" / "own", result("window"))
    (tmp_path / "runs" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "runs" / "again").symlink_to(tmp_path / "elsewhere" / "run")
    (tmp_path / "runs" / "own" / "circle").symlink_to(tmp_path / "runs")
    (tmp_path / "runs" / "nowhere").symlink_to(tmp_path / "absent")
    assert sorted(run.method for run in load_results(tmp_path / "runs")) == ["full", "window"]


def test_a_summary_that_is_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "run" / "summary.json").mkdir(parents=True)
    with pytest.raises(UserError, match=r"summary\.json is broken \(is a directory\)"):
        load_results(tmp_path)


@pytest.mark.parametrize(
    "content",
    ["{", "[]", "{}", resealed(schema=3), "\x00"]
    + [resealed(measure=measure) for measure in ("accuracy", {}, {"name": 1}, {"name": "f1", "other": 1})]
    + [resealed().replace("S2", "S1"), json.dumps(result().as_json())],
)
def test_a_broken_summary_is_named(tmp_path: Path, content: str) -> None:
    path = store(tmp_path / "run", content)
    with pytest.raises(UserError, match=str(path)):
        load_results(tmp_path)


def test_a_folder_without_results_says_how_to_get_some(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(UserError, match="contextlab bench"):
            load_results(folder)


def test_a_run_that_has_not_ended_is_left_out_and_named(tmp_path: Path) -> None:
    store(tmp_path / "whole", result())
    for name in ("whole", "half"):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "manifest.json").write_text("{}")
    assert len(load_results(tmp_path)) == 1
    assert unfinished(tmp_path) == [tmp_path / "half"]


def test_a_folder_with_unfinished_runs_only_says_so(tmp_path: Path) -> None:
    (tmp_path / "half-run").mkdir()
    (tmp_path / "half-run" / "manifest.json").write_text("{}")
    with pytest.raises(UserError, match=r"No run below .* is finished \(half-run\): run its command again"):
        load_results(tmp_path)


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_as_before_also_after_an_error(enabled: bool) -> None:
    try:
        (gc.enable if enabled else gc.disable)()
        with gc_paused():
            assert not gc.isenabled()
        assert gc.isenabled() is enabled
        with pytest.raises(ZeroDivisionError), gc_paused():
            _ = 1 / 0
        assert gc.isenabled() is enabled
    finally:
        gc.enable()
