from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from contextlab.cli.main import main
from contextlab.sweeps import engines
from contextlab.sweeps.engines.local import LocalEngine

TOY = Path(__file__).parents[1] / "harness" / "toy_parts.py"
SUITE = f"""
method = ["{TOY}:Counter(prior=0.5)", "{TOY}:Other"]
task = "{TOY}:Letters"
backbone = "tiny-llama"
seed = [0, 1]
limit = 3
device = "cpu"
out = "OUT"
"""


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    path = tmp_path / "suite.toml"
    path.write_text(SUITE.replace("OUT", str(tmp_path / "runs")))
    return path


def answers(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_suite_is_planned_run_and_looked_at(suite: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", str(suite), "--seed", "0", "--plan"]) == 0
    shown = capsys.readouterr().out
    assert "0 of 2 runs stored, 2 waiting" in shown
    assert not list((tmp_path / "runs").glob("*/summary.json"))
    assert main(["sweep", str(suite), "--workers", "1", "--shard", "2", "--json"]) == 0
    results = answers(capsys)
    assert [(result["provenance"]["seed"], result["data"]["examples"]) for result in results] == [(0, 3), (1, 3)] * 2
    assert main(["sweep", str(suite), "--status", "--json"]) == 0
    assert [(row["state"], row["finished"]) for row in answers(capsys)] == [("stored", 3)] * 4
    assert main(["sweep", "--out", str(tmp_path / "runs"), "--status"]) == 0
    assert "4 of 4 runs stored" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere.toml"], "nowhere.toml cannot be read"),
        (["--task", "needle"], "No method is named: give at least one with --method, or in the file."),
        (["--status", "--out", "nowhere"], "There is no sweep in nowhere: name its folder with --out."),
        (["SUITE", "--status"], "/runs has not begun: run it without --status."),
        (["SUITE", "--engine", "rya"], "did you mean 'ray'"),
    ],
)
def test_a_mistake_is_one_sentence(
    words: list[str], message: str, suite: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sweep", *(str(suite) if word == "SUITE" else word for word in words)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("methd = 'full'", "did you mean 'method'"),
        ("method =", "is not valid TOML"),
        ("limit = 0", "--limit of the sweep"),
    ],
)
def test_a_file_with_a_mistake_is_one_sentence(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "suite.toml"
    path.write_text(text)
    assert main(["sweep", str(path), "--method", "full", "--task", "needle"]) == 2
    assert message in capsys.readouterr().err


def test_ctrl_c_ends_the_workers_and_says_how_to_go_on(
    suite: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    closed: list[bool] = []

    class Interrupted(LocalEngine):
        def start(self, jobs: Any) -> Any:
            raise KeyboardInterrupt

        def close(self) -> None:
            closed.append(True)

    monkeypatch.setattr(engines, "engine", lambda *_: Interrupted())
    assert main(["sweep", str(suite)]) == 130
    assert closed == [True]
    assert "run the same command again to resume" in capsys.readouterr().err
