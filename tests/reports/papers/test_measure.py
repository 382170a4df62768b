from __future__ import annotations

from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from stored_runs import changed
from toy_paper import RUN, paper

from contextlab import seals
from contextlab.errors import UserError
from contextlab.harness.store import read_result
from contextlab.harness.stored import Result
from contextlab.reports.papers import measure
from contextlab.reports.papers.schema import PaperRun

OPTIONS: dict[str, Any] = {"backbone": "tiny-llama", "device": "cpu", "progress": False}


@pytest.fixture(autouse=True)
def _generated_text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No data of the user's, so that the generated sample is read."""
    monkeypatch.delenv("CONTEXTLAB_DATA", raising=False)
    monkeypatch.setenv("CONTEXTLAB_CACHE", str(tmp_path / "cache"))


def stored(runs: list[PaperRun], folder: Path) -> list[measure.Measured]:
    """What a folder holds."""
    return list(measure.stored(runs, folder, "tiny-llama"))


def edit(folder: Path, **changes: Any) -> Result:
    """Change the only stored result below a folder."""
    (path,) = folder.rglob("summary.json")
    result = read_result(path.parent)
    seals.write(path, changed(result, **changes).as_json())
    return result


def run(**changes: Any) -> PaperRun:
    return PaperRun.model_validate({**RUN, **changes})


def test_what_is_measured_is_found_in_the_store(tmp_path: Path) -> None:
    out = tmp_path / "runs"
    measurements = list(measure.measured([run()], out=out, **OPTIONS))
    assert [(cell.row, cell.method, cell.task) for cell in measurements] == [
        ("plain", "window", "pg22/S1(tokens=48)"),
        ("new", "closed-book", "pg22/S1(tokens=48)"),
    ]
    assert [cell.result and cell.result.data.examples for cell in measurements] == [2, 2]
    assert stored([run()], out) == measurements


def test_the_same_runs_again_run_nothing(tmp_path: Path) -> None:
    measurements = list(measure.measured([run()], out=tmp_path, **OPTIONS))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("examples.jsonl")}
    assert list(measure.measured([run()], out=tmp_path, **OPTIONS)) == measurements
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("examples.jsonl")} == before


def test_a_limit_replaces_that_of_the_recipe(tmp_path: Path) -> None:
    measurements = list(measure.measured([run()], out=tmp_path, limit=1, **OPTIONS))
    assert [cell.result and cell.result.data.examples for cell in measurements] == [1, 1]
    assert stored([run()], tmp_path) == measurements


def test_settings_tell_stored_runs_apart(tmp_path: Path) -> None:
    list(measure.measured([run(methods=["window(N=16)"], rows=["a"], limit=1)], out=tmp_path, **OPTIONS))
    wanted = run(methods=["window(N=16)", "window", "window(N=32)"], rows=["a", "b", "c"])
    assert [cell.result is not None for cell in measure.stored([wanted], tmp_path, "tiny-llama")] == [
        True,
        False,
        False,
    ]
    assert [cell.result for cell in measure.stored([wanted], tmp_path, "tiny-gpt2")] == [None] * 3
    other = run(methods=["window(N=16)"], rows=["a"], task="pg22/S1(tokens=32)")
    assert [cell.result for cell in measure.stored([other], tmp_path, "tiny-llama")] == [None]


def test_a_result_without_a_newer_setting_has_its_default(tmp_path: Path) -> None:
    list(measure.measured([run(methods=["window(N=16)"], rows=["a"], limit=1)], out=tmp_path, **OPTIONS))
    config = edit(tmp_path).method_config
    for absent, expected in (("rank", True), ("N", False)):
        edit(tmp_path, method_config={name: value for name, value in config.items() if name != absent})
        wanted = run(methods=["window(N=16)"], rows=["a"])
        assert [cell.result is not None for cell in measure.stored([wanted], tmp_path, "tiny-llama")] == [expected]


def test_methods_are_found_on_the_same_examples(tmp_path: Path) -> None:
    whole = list(measure.measured([run()], out=tmp_path / "a", limit=2, **OPTIONS))
    # A newer run of one method on fewer examples is left out, beside one of both.
    list(measure.measured([run(methods=["window"], rows=["plain"])], out=tmp_path / "b", limit=1, **OPTIONS))
    assert stored([run()], tmp_path) == whole
    (alone,) = measure.stored([run(methods=["window"], rows=["plain"])], tmp_path, "tiny-llama")
    assert alone.result is not None
    assert alone.result.data.examples == 1


def test_weights_that_were_none_are_those_that_nothing_fits(tmp_path: Path) -> None:
    list(measure.measured([run(methods=["window"], rows=["a"], limit=1)], out=tmp_path, **OPTIONS))
    edit(tmp_path, method_config={**edit(tmp_path).method_config, "weights": None})
    (cell,) = measure.stored([run(methods=["window"], rows=["a"])], tmp_path, "tiny-llama")
    assert cell.result is not None


def test_a_control_is_no_result_of_the_method(tmp_path: Path) -> None:
    list(measure.measured([run(methods=["window"], rows=["a"], limit=1)], out=tmp_path, **OPTIONS))
    edit(tmp_path, context="none")
    wanted = run(methods=["window"], rows=["a"])
    assert [cell.result for cell in measure.stored([wanted], tmp_path, "tiny-llama")] == [None]


def test_an_empty_store_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="There are no results below"):
        list(measure.stored([run()], tmp_path / "none", "tiny-llama"))


def test_what_was_never_published_is_missing_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    toy = paper()
    assert measure.missing(toy, toy.entry[1], None) == ["the model was lost"]


def test_a_model_and_data_that_are_not_here_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    toy = paper()
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_: None)
    absent = measure.missing(toy, toy.entry[0], None)
    assert absent == [
        "the model tiny-llama is not in the cache of the hub on this machine",
        "the data of pg22/S1 is not there",
    ]
    assert measure.missing(toy, toy.entry[0], tmp_path) == absent


def test_nothing_is_missing_where_all_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    toy = paper()
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_: str(tmp_path))
    monkeypatch.setattr(measure, "_is_there", lambda *_: True)
    assert measure.missing(toy, toy.entry[0], None) == []
