from __future__ import annotations

import json
from pathlib import Path

import pytest
from stored_runs import result, store, three

from contextlab.benchmarks.task import Part
from contextlab.errors import UserError
from contextlab.reports.stored import load_results, unfinished


def test_results_are_found_at_any_depth(tmp_path: Path) -> None:
    results = three()
    for subfolder, one in zip(("a", "b/c", "d/e/f"), results, strict=True):
        path = store(tmp_path / subfolder, json.dumps(one))
        path.with_name("examples.jsonl").write_text('{"id": "x", "quality": 0.5}\n')
    parts = {"x": {"quality": [Part(0.5, 1.0, "x")]}}
    folders = [str(tmp_path / subfolder) for subfolder in ("a", "b/c", "d/e/f")]
    assert load_results(tmp_path) == [
        one | {"folder": folder, "parts": parts} for one, folder in zip(results, folders, strict=True)
    ]


def test_a_last_line_that_was_cut_off_does_not_hide_a_table(tmp_path: Path) -> None:
    path = store(tmp_path / "run", json.dumps(result()))
    path.with_name("examples.jsonl").write_text('{"id": "a", "quality": 1.0}\n{"id": "b", "qual')
    assert [list(one["parts"]) for one in load_results(tmp_path)] == [["a"]]


def test_runs_behind_symbolic_links_are_seen_once(tmp_path: Path) -> None:
    store(tmp_path / "elsewhere" / "run", json.dumps(result("full")))
    store(tmp_path / "runs" / "own", json.dumps(result("window")))
    (tmp_path / "runs" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "runs" / "again").symlink_to(tmp_path / "elsewhere" / "run")
    (tmp_path / "runs" / "own" / "circle").symlink_to(tmp_path / "runs")
    (tmp_path / "runs" / "nowhere").symlink_to(tmp_path / "absent")
    assert sorted(one["method"] for one in load_results(tmp_path / "runs")) == ["full", "window"]


def test_a_summary_that_is_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "run" / "summary.json").mkdir(parents=True)
    with pytest.raises(UserError, match=r"summary\.json cannot be read \(is a directory\)"):
        load_results(tmp_path)


@pytest.mark.parametrize(
    "content",
    ["{", "[]", "{}", json.dumps(result(schema=2)), "\x00"]
    + [json.dumps(result(measure=measure)) for measure in ("accuracy", {}, {"name": 1}, {"name": "f1", "other": 1})],
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
    store(tmp_path / "whole", json.dumps(result()))
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
