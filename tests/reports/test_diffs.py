from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from stored_runs import nats_of, result, store

from contextlab import seals
from contextlab.benchmarks.metrics.estimates import paired
from contextlab.benchmarks.task import Measure, Part
from contextlab.errors import UserError
from contextlab.harness.stored import QUALITY, Manifest, Object, Parts, Result
from contextlab.reports.diffs import diff, run_of

ACCURACY = {"name": "accuracy", "higher_is_better": True, "bounded": True}


def answers(values: dict[str, float]) -> dict[str, Parts]:
    return {name: {"accuracy": [Part(value, 1.0, name)], QUALITY: []} for name, value in values.items()}


def fields(first: Result, second: Result) -> set[tuple[str, str]]:
    return {(field.kind, field.name) for field in diff(first, second).fields}


def test_a_run_does_not_differ_from_itself() -> None:
    run = result()
    report = diff(run, run)
    assert (report.fields, report.examples, report.shared) == ([], [], 3)
    assert report.comparison is not None
    assert (report.comparison.metric.value, report.comparison.pvalue) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"method_config": {"K": 32}}, ("settings", "K")),
        ({"method": "full"}, ("settings", "method")),
        ({"context": "none"}, ("task", "context")),
        ({"backbone": "tiny-gpt2"}, ("model", "backbone")),
        ({"data": {"sha256": "b" * 64}}, ("data", "sha256")),
        ({"provenance": {"prompt_sha256": "c" * 64}}, ("prompts", "prompt_sha256")),
        ({"provenance": {"commit": "c" * 40}}, ("code", "commit")),
        ({"provenance": {"seed": 3}}, ("machine", "seed")),
        ({"provenance": {"instructions": "AVX2"}}, ("machine", "instructions")),
    ],
)
def test_what_differs_is_named_and_nothing_else(changes: dict[str, Any], field: tuple[str, str]) -> None:
    run, other = result(method_config={"K": 64}), result(**{"method_config": {"K": 64}, **changes})
    assert fields(run, other) == fields(other, run) == {field}


def test_the_manifests_say_what_the_summaries_do_not(tmp_path: Path) -> None:
    runs = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        run = result(folder=tmp_path / name)
        identity: Object = {"source_sha256": name * 64, "kernels": None}
        manifest = Manifest(run_id=name, identity=identity, provenance=run.provenance)
        seals.write(tmp_path / name / "manifest.json", manifest.as_json())
        runs.append(run)
    (field,) = diff(*runs).fields
    assert (field.kind, field.name, field.first, field.second) == ("code", "source_sha256", "a" * 12, "b" * 12)
    (tmp_path / "a" / "manifest.json").write_text("[]")
    with pytest.raises(UserError, match=r"manifest\.json is broken"):
        diff(*runs)
    (tmp_path / "a" / "manifest.json").unlink()
    assert {field.first for field in diff(*runs).fields} == {"-"}


def test_files_of_settings_differ_by_their_content(tmp_path: Path) -> None:
    runs = []
    for name, sha256 in (("a", "1" * 64), ("b", "1" * 64), ("c", "2" * 64)):
        (tmp_path / name).mkdir()
        run = result(folder=tmp_path / name)
        identity: Object = {"method_files": {f"/{name}/text": sha256, "/text": "0" * 64}}
        manifest = Manifest(run_id=name, identity=identity, provenance=run.provenance)
        seals.write(tmp_path / name / "manifest.json", manifest.as_json())
        runs.append(run)
    assert fields(runs[0], runs[1]) == set()
    assert fields(runs[0], runs[2]) == {("weights", "method_files")}


def test_modules_that_both_have_are_compared() -> None:
    codes = ({"method": "1", "hso": "1", "cache": "1"}, {"method": "1", "trime": "2", "cache": "2"})
    (field,) = diff(*(result(provenance={"code": code}) for code in codes)).fields
    assert (field.kind, field.name, field.first, field.second) == ("module", "cache", "1", "2")


def test_the_difference_is_the_paired_one_of_the_second_minus_the_first() -> None:
    first, second = ({"a": 1.0, "b": 5.0, "c": 9.0}, {"a": 0.9, "b": 4.8, "c": 8.85, "d": 1.0})
    report = diff(result(parts=nats_of(first)), result(parts=nats_of(second)))
    parts = [{k: v["nats_per_token"] for k, v in nats_of(values).items()} for values in (second, first)]
    assert report.comparison is not None
    assert report.comparison.metric == paired(Measure("nats_per_token"), *parts)
    assert [example.id for example in report.examples] == ["b", "c", "a"]
    assert [round(example.change, 6) for example in report.examples] == [-0.2, -0.15, -0.1]
    assert (report.shared, report.flipped) == (3, ([], []))


def test_changes_within_rounding_are_none() -> None:
    first = {"a": 1.0, "b": 5.0, "c": 9.0}
    near, other = ({**first, "a": 1.0 + change, "b": 5.0 + 9e-6} for change in (9e-6, 2e-5))
    reports = [diff(result(parts=nats_of(first)), result(parts=nats_of(second))) for second in (near, other)]
    assert [[example.id for example in report.examples] for report in reports] == [[], ["a"]]
    assert [report.largest for report in reports] == pytest.approx([9e-6, 2e-5])
    assert reports[0].as_json()["largest"] == reports[0].largest


def test_examples_that_flipped_are_counted_by_direction() -> None:
    first = {"a": 1.0, "b": 0.0, "c": 1.0, "d": 0.5}
    second = {"a": 0.0, "b": 1.0, "c": 1.0, "d": 1.0}
    runs = [result(measure=ACCURACY, parts=answers(values)) for values in (first, second)]
    report = diff(*runs)
    assert report.flipped == (["a"], ["b"])
    assert [example.id for example in report.examples] == ["a", "b", "d"]
    assert json.loads(json.dumps(report.as_json()))["only_first_right"] == ["a"]


@pytest.mark.parametrize(
    "other", [{"parts": nats_of({"x": 1.0})}, {"measure": ACCURACY}, {"task": "arxiv"}, {"data": {"sha256": "b" * 64}}]
)
def test_runs_without_anything_in_common_are_not_compared(other: dict[str, Any]) -> None:
    report = diff(result(), result(**other))
    assert (report.comparison, report.shared) == (None, 0)
    assert report.as_json()["difference"] is None


def test_a_run_is_named_by_its_folder_or_its_id(tmp_path: Path) -> None:
    for name in ("window-pg22-111", "full-pg22-211"):
        store(tmp_path / name, result(run_id=name))
    by_folder = run_of(str(tmp_path / "window-pg22-111"), Path("absent"))
    assert by_folder.run_id == run_of("window-pg22-111", tmp_path).run_id == "window-pg22-111"
    assert run_of("211", tmp_path).run_id == "full-pg22-211"
    for name, message in (
        ("11", "names 2 runs"),
        ("nothing", "There is no run below"),
        (str(tmp_path), "no finished run"),
    ):
        with pytest.raises(UserError, match=message):
            run_of(name, tmp_path)
