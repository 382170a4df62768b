from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import pandas
import pytest

from contextlab.cli.main import main

RESULTS = Path(__file__).parents[2] / "results"
FOUR = RESULTS / "four-methods-pg22"


def table(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["table", *arguments]) == 0
    return capsys.readouterr().out


def test_csv_and_json_are_the_tidy_frame(capsys: pytest.CaptureFixture[str]) -> None:
    options = (str(FOUR), "--where", "method=hso", "--where", "metric=nats_per_token")
    row = json.loads(table(capsys, *options, "--format", "json"))
    (of_csv,) = pandas.read_csv(io.StringIO(table(capsys, *options, "--format", "csv"))).to_dict("records")
    stored = json.loads((Path(row["folder"]) / "summary.json").read_text())
    assert row["settings"] == json.loads(of_csv["settings"]) == stored["method_config"]
    metric = stored["metrics"]["nats_per_token"]
    for cells in (row, of_csv):
        assert [cells[key] for key in ("value", "low", "high", "n")] == pytest.approx(list(metric.values()), rel=1e-12)
        assert cells["state_bytes"] == stored["state"]["bytes"]
        assert cells["task"] == "pg22/S2(tokens=8192)"


def test_several_folders_are_one_table(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for run in FOUR.iterdir():
        shutil.copytree(run, tmp_path / run.name.partition("-")[0] / run.name)
    folders = sorted(map(str, tmp_path.iterdir()))
    assert len(folders) > 2
    for style in ("markdown", "csv"):
        several, together = (table(capsys, *of, "--format", style) for of in (folders, [str(tmp_path)]))
        assert several == together


def test_csv_and_json_say_that_a_layout_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    for options, warned in (((), False), (("--metric", "f1"), True), (("--baseline", "window"), True)):
        assert main(["table", str(FOUR), "--format", "csv", *options]) == 0
        assert ("choose with --where" in capsys.readouterr().err) is warned


def test_rows_costs_order_and_names_are_chosen(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "names.toml").write_text('method.full = "Full attention"\n')
    options = ("--cost", "none", "--metric", "nats_per_token_warm", "--sort", "nats_per_token_warm")
    where = ("--where", "method=full|hso|window", "--names", str(tmp_path / "names.toml"))
    lines = table(capsys, str(FOUR), *options, *where).splitlines()
    assert lines[0] == "| method | nats_per_token_warm |"
    assert [line.split(" | ")[0] for line in lines[2:5]] == ["| Full attention", "| hso", "| window"]


def test_shares_are_taken_between_named_twins(capsys: pytest.CaptureFixture[str]) -> None:
    out = table(capsys, str(RESULTS / "pg22-s2"), "--mixed", "--twins", "sliding", "full", "--cost", "none")
    values = {line.split(" | ")[0]: line.split(" | ")[-1].split(" ")[0] for line in out.splitlines()[2:-2]}
    assert [values["| sliding"], values["| full"]] == ["0.00", "1.00"]
    assert "share = (sliding - method) / (sliding - full)" in out
    assert main(["table", str(FOUR), "--twins", "window", "lost"]) == 2
    assert "There is no method in these results 'lost'" in capsys.readouterr().err


def test_a_mixture_of_code_is_refused_or_named(capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(RESULTS / "chapterbreak-ctx-4k")
    assert main(["table", folder]) == 2
    error = capsys.readouterr().err
    assert "3 states of the code (a0577e2 in " in error
    condition = error.split("--where '")[1].split("'")[0]
    assert "states of the code" not in table(capsys, folder, "--where", condition)
    assert "Runs come from 3 states of the code: a0577e2 (window, " in table(capsys, folder, "--mixed")


def test_several_dimensions_may_be_columns(capsys: pytest.CaptureFixture[str]) -> None:
    out = table(capsys, str(RESULTS / "nine-tasks"), "--mixed", "--columns", "task,context", "--cost", "none")
    assert "| method | metaicl/k16 accuracy |" in out
    out = table(capsys, str(RESULTS / "nine-tasks"), "--mixed", "--rows", "method,task", "--cost", "none")
    assert "| method | task | accuracy |" in out


def test_a_wide_table_is_readable_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("contextlab.cli.WIDTH_OF_FILES", 80)
    out = table(capsys, str(RESULTS / "nine-tasks"), "--mixed", "--format", "text", "--metric", "all", "--cost", "all")
    assert "…" not in out
    assert max(map(len, out.splitlines())) <= 80
    assert "0.570 [0.349, 0.767]" in out


def test_unfinished_runs_are_left_out_and_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    shutil.copytree(FOUR, tmp_path / "runs")
    half = sorted((tmp_path / "runs").iterdir())[0]
    (half / "summary.json").unlink()
    assert main(["table", str(tmp_path / "runs")]) == 0
    out, err = capsys.readouterr()
    assert err == f"contextlab: left out, because unfinished: {half}.\n"
    assert out.count("| ") > 20


def test_other_data_are_refused_unless_asked_for(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    shutil.copytree(FOUR, tmp_path / "runs")
    path = next((tmp_path / "runs").glob("hso-*/summary.json"))
    path.write_text(
        json.dumps(
            json.loads(path.read_text()) | {"data": {"source": "hub", "sha256": "f" * 64, "examples": 3, "note": "x"}}
        )
    )
    assert main(["table", str(tmp_path / "runs")]) == 2
    err = capsys.readouterr().err
    assert "Runs come from 2 sets of data of pg22/S2" in err
    assert err.count("\n") == 1
    assert "data=ffffffff" in table(capsys, str(tmp_path / "runs"), "--mixed")
    assert "hso" in table(capsys, str(tmp_path / "runs"), "--where", "data=ffffffff*")


def test_limits_are_named_in_the_caption(capsys: pytest.CaptureFixture[str]) -> None:
    out = table(capsys, str(FOUR), "--under", "state=32MB", "--sort", "nats_per_token")
    assert " Left out: 2 of 8 runs by the limit state=32MB." in out
    assert "| hso |" in out.splitlines()[2]
    assert "| full |" not in out


@pytest.mark.parametrize("style", ["markdown", "latex", "html", "text", "csv", "json"])
def test_every_format_says_which_runs_are_left_out(capsys: pytest.CaptureFixture[str], style: str) -> None:
    note = "Left out: 1 of 8 runs by method!=hso."
    assert main(["table", str(FOUR), "--where", "method!=hso", "--format", style]) == 0
    out, err = capsys.readouterr()
    assert note in " ".join((err if style in ("csv", "json") else out).split())
    assert main(["table", str(FOUR), "--format", style]) == 0
    assert "Left out" not in "".join(capsys.readouterr())
