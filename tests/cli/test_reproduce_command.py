from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from toy_paper import FIGURE, MODEL, TABLE, paper

from contextlab.cli.main import main
from contextlab.cli.reproduce import _time
from contextlab.reports.papers import measure, plan, schema

TINY = ("--backbone", "tiny-llama", "--device", "cpu")


@pytest.fixture(autouse=True)
def _toy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Only the toy paper, and no data of the user's."""
    monkeypatch.setattr(schema, "papers", lambda: {"toy": paper()})
    monkeypatch.delenv("CONTEXTLAB_DATA", raising=False)
    monkeypatch.setenv("CONTEXTLAB_CACHE", str(tmp_path / "cache"))


def reproduced(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["reproduce", *words, "--format", "json"]) == 0
    page: dict[str, Any] = json.loads(capsys.readouterr().out)
    return page


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["reproduce", *words]) == 2
    answer = capsys.readouterr()
    assert answer.out == ""
    assert len(answer.err.splitlines()) == 1
    return answer.err


def test_without_a_name_it_lists_every_entry(capsys: pytest.CaptureFixture[str]) -> None:
    rows = reproduced(capsys)["rows"]
    assert [row["name"] for row in rows] == ["toy/table1", "toy/figure2"]
    assert [row["what it shows"] for row in rows] == [TABLE["about"], FIGURE["about"]]
    assert [row["time"] for row in rows] == [f"{5 + plan.START:.0f} s", "no recipe"]


def test_listing_is_quick_to_import() -> None:
    code = "import sys\nfrom contextlab.cli.main import main\nmain(['reproduce'])\nassert 'torch' not in sys.modules"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    assert "longmem/table7" in answer.stdout


def test_an_entry_is_run_stored_and_printed_again(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = str(tmp_path / "runs")
    page = reproduced(capsys, "toy/table1", "--out", out, *TINY)
    rows = {row["what"]: row for row in page["rows"]}
    assert rows["model"] == {"what": "model", "paper": MODEL["about"], "here": "tiny-llama"}
    assert rows["plain: books (perplexity)"]["here"].startswith("window: ")
    assert rows["new: books (perplexity)"]["paper"] == "15.0 (-25.0 %), corrected 16.0"
    assert "Other books." in page["notes"]
    assert reproduced(capsys, "toy/table1", "--from", out, "--backbone", "tiny-llama") == page


def test_a_whole_paper_runs_what_has_a_recipe(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page = reproduced(capsys, "toy", "--out", str(tmp_path), "--limit", "1", *TINY)
    assert page["title"].startswith("toy/table1")
    assert {row["here"] for row in page["rows"] if row["what"] == "size"} == {"pg22/S1(tokens=48): 1 example"}


def test_a_table_as_text_and_in_markdown(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ("toy/table1", "--out", str(tmp_path), "--limit", "1", *TINY)
    assert main(["reproduce", *words, "--format", "text"]) == 0
    text = capsys.readouterr().out
    assert "corrected 16.0" in text
    assert "* Other books." in text
    assert main(["reproduce", *words, "--format", "markdown"]) == 0
    assert "| model | Toy 1B | tiny-llama |" in capsys.readouterr().out


def test_published_numbers_alone(capsys: pytest.CaptureFixture[str]) -> None:
    page = reproduced(capsys, "toy/table1", "--published")
    assert page["rows"][0] == {"model": "plain", "books (perplexity)": "20.0", "questions (accuracy %)": "50.0"}


def test_a_dry_run_prints_commands_time_and_memory(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "runs"
    page = reproduced(capsys, "toy/table1", "--dry-run", "--out", str(out), "--limit", "7")
    (row,) = page["rows"]
    assert row["run"].startswith("contextlab bench --method window,closed-book --task 'pg22/S1(tokens=48)'")
    assert (row["examples"], row["memory"]) == ("7", "0.7 GB")
    assert "GFLOPs per second, that of this machine just now" in page["notes"][0]
    assert not out.exists()


def test_a_dry_run_of_an_entry_without_recipe_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    page = reproduced(capsys, "toy/figure2", "--dry-run")
    assert page["rows"] == []
    assert "No recipe for smollm2-135m: nothing measures it." in page["notes"]


def test_a_dry_run_at_the_papers_scale_names_its_model_and_what_is_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = reproduced(capsys, "toy/figure2", "--dry-run", "--scale", "paper")
    assert page["notes"][0] == "Model: Toy 1B (not published). Data: books | papers. Size: not stated."
    assert "Missing here: the model was lost." in page["notes"]
    page = reproduced(capsys, "toy/table1", "--dry-run", "--scale", "paper")
    assert [row["run"].split()[0] for row in page["rows"]] == ["one", "contextlab", "all"]
    assert "Missing here: the model tiny-llama is not in" in page["notes"][-1]
    monkeypatch.setattr(measure, "missing", lambda *_: [])
    assert reproduced(capsys, "toy/table1", "--dry-run", "--scale", "paper")["notes"][-1] == "Model and data are here."


def test_the_papers_scale_runs_where_nothing_is_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(measure, "missing", lambda *_: [])
    page = reproduced(capsys, "toy/table1", "--scale", "paper", "--out", str(tmp_path), "--device", "cpu")
    assert {row["here"] for row in page["rows"] if row["what"] == "model"} == {"tiny-llama"}


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (("tyo",), "There is no paper or entry 'tyo': did you mean 'toy'?"),
        (("toy/tabel1",), "There is no entry of toy 'tabel1': did you mean 'table1'?"),
        (("toy/figure2",), "toy/figure2 has no recipe for smollm2-135m: nothing measures it; use --published"),
        (("toy/figure2", "--scale", "paper"), "cannot be run at the paper's scale here, as the model was lost: use"),
        (("toy/table1", "--scale", "paper"), "and the data of pg22/S1 is not there: use --scale embedded"),
        (("toy/table1", "--from", "/nowhere"), "There are no results below /nowhere"),
        (("toy/table1", "--scale", "large"), "'large'"),
        (("toy/table1", "--limit", "0"), "--limit"),
        (("toy/table1", "--backbone", "tiny-lama"), "did you mean 'tiny-llama'?"),
        (("toy/table1", "--data", "/nowhere"), "/nowhere"),
    ],
)
def test_a_mistake_is_one_sentence(capsys: pytest.CaptureFixture[str], words: tuple[str, ...], answer: str) -> None:
    assert answer in refused(capsys, *words)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (59, "59 s"),
        (90, "1.5 min"),
        (3000, "50 min"),
        (7200, "2.0 hours"),
        (3e6, "35 days"),
        (1e9, "32 years"),
    ],
)
def test_times_have_a_unit_that_fits(seconds: float, text: str) -> None:
    assert _time(seconds) == text
