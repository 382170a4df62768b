from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import pandas
import pytest

import contextlab
from contextlab.cli.main import main

TASKS = "needle/1k(tokens=16),needle/2k(tokens=32),needle/4k(tokens=64)"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A method on needle at three lengths, two stories each."""
    folder = tmp_path_factory.mktemp("results")
    contextlab.bench("window", TASKS, backbone="tiny-llama", limit=2, out=folder, progress=False)
    return folder


def test_runs_at_three_lengths_are_one_table(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["length", str(results)]) == 0
    out = capsys.readouterr().out
    assert out.startswith(
        "| method | accuracy at 16 | accuracy at 32 | accuracy at 64 | 85 % of the base | effective length |"
    )
    assert "Chance is 0.25, the base " in out
    assert "n = 2 examples at a length; context own, backbone tiny-llama" in out


def test_csv_and_json_are_the_frame(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["length", str(results), "--threshold", "0.01", "--where", "tokens>16"]
    assert main([*options, "--format", "json"]) == 0
    out, err = capsys.readouterr()
    of_json = [json.loads(row) for row in out.splitlines()]
    assert main([*options, "--format", "csv"]) == 0
    of_csv = pandas.read_csv(io.StringIO(capsys.readouterr().out)).to_dict("records")
    assert [row["length"] for row in of_json] == [row["length"] for row in of_csv] == [32, 64]
    assert {row["threshold"] for row in of_csv} == {0.01}
    assert err == "contextlab: Left out: 1 of 3 runs by tokens>16.\n"


@pytest.mark.parametrize("style", ["latex", "html", "text"])
def test_other_formats_are_printed(results: Path, style: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["length", str(results), "--format", style, "--notes"]) == 0
    assert "effective" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--threshold", "85.6"], "write 0.856 for 85.6 %"),
        (["--where", "tokens=16"], "has only the length 16 of needle: run it at several lengths"),
        (["--where", "task=pg22"], "No result fits"),
        (["--format", "xml"], "There is no format"),
    ],
)
def test_a_mistake_is_one_line(
    results: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["length", str(results), *options]) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert (out, err.count("\n")) == ("", 1)


def test_mixed_and_damaged_results_are_refused(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = Path(__file__).parents[2] / "results"
    both = ["length", str(stored / "needle"), str(stored / "nine-tasks"), "--where", "benchmark=needle"]
    for style in ("markdown", "csv"):
        assert main([*both, "--format", style]) == 2
        assert "states of the code" in capsys.readouterr().err
    copy = shutil.copytree(results, tmp_path / "copy")
    lines = next(copy.glob("window-*")) / "examples.jsonl"
    lines.write_text(lines.read_text().replace('"accuracy"', '"accuracies"', 1))
    assert main(["length", str(copy)]) == 2
    out, err = capsys.readouterr()
    assert str(lines) in err
    assert out == ""


def test_the_picture_has_a_line_for_every_method_and_one_at_85_percent(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "one.svg"
    assert main(["plot", "effective-length", str(results), "-o", str(file)]) == 0
    assert "the 85 % that an effective length needs" in capsys.readouterr().out
    assert file.stat().st_size > 1000
