from __future__ import annotations

import json
from pathlib import Path

import pytest

from contextlab.benchmarks.task import Measure
from contextlab.cli.diff import lines
from contextlab.cli.main import main
from contextlab.reports.diffs import Diff, Field

RESULTS = Path(__file__).parents[2] / "results/pg22-s2"


def run(method: str) -> str:
    """The run of a method with its default settings."""
    folders = RESULTS.glob(f"{method}-*")
    (folder,) = (
        candidate
        for candidate in folders
        if json.loads((candidate / "summary.json").read_text()).get("changed", []) == []
    )
    return str(folder)


def test_two_runs_are_shown_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", run("window"), run("full"), "--examples", "2"]) == 0
    out = capsys.readouterr().out
    assert "first: window on pg22/S2(tokens=8192)" in out
    assert "settings, method: window | full" in out
    assert "nats_per_token, second - first: -0.137 [" in out
    assert "(paired, n = 3, lower is better)" in out
    assert "Examples that moved most (3 of 3 moved; the first 2):" in out
    assert out.count(" | ") > 2
    assert max(line.count("pg6") for line in out.splitlines()) == 1


def test_modules_whose_code_differs_stand_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    report = Diff(("a", "b"), ("t", "t"), [Field("module", n, "1", "2") for n in "xy"], Measure("f1"), None, [], 0, 0.0)
    assert "code of 2 modules: x, y" in list(lines(report, 3))


def test_ids_are_searched_below_a_folder(capsys: pytest.CaptureFixture[str]) -> None:
    ids = [Path(run(method)).name for method in ("window", "sinks")]
    assert main(["diff", *ids, "--from", str(RESULTS), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["methods"] == ["window", "sinks"]
    assert 0 < report["difference"]["p"] <= 1
    assert len(report["examples"]) == 3


def test_the_same_run_twice_differs_in_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", run("window"), run("window")]) == 0
    out = capsys.readouterr().out
    assert "Settings, code, data and prompts are the same." in out
    assert "no example differs by more than rounding (0.0e+00 at most, n = 3)" in out


@pytest.mark.parametrize("names", [("absent", "other"), (str(RESULTS), "other")])
def test_a_mistake_is_one_line(names: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", *names, "--from", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
