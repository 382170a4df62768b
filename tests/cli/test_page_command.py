from __future__ import annotations

from pathlib import Path

import pytest
from stored_examples import accurate, keep, line

from contextlab.cli.main import main


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    keep(tmp_path / "runs", accurate("window", 0.5), [line("a", 1.0, parts={"accuracy": [[1.0, 1, "a"]]})])
    return tmp_path / "runs"


def test_a_page_is_written_and_its_size_printed(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "made" / "page.html"
    assert main(["page", str(folder), "-o", str(file), "--title", "A & B"]) == 0
    assert "<title>A &amp; B</title>" in file.read_text("utf-8")
    assert capsys.readouterr().out.startswith(f"{file}: 0.")


def test_a_page_of_a_folder_is_written_into_it(folder: Path) -> None:
    assert main(["page", str(folder)]) == 0
    assert (folder / "page.html").is_file()
    assert main(["page", str(folder)]) == 0


def test_unfinished_runs_are_left_out_and_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "half").mkdir()
    (folder / "half" / "manifest.json").write_text("{}")
    assert main(["page", str(folder)]) == 0
    assert capsys.readouterr().err == f"contextlab: left out, because unfinished: {folder / 'half'}.\n"


def test_data_that_cannot_be_loaded_is_said_and_the_page_is_written(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "page.html"
    assert main(["page", str(folder), "-o", str(file), "--data", str(tmp_path / "absent")]) == 0
    assert "The texts of pg22/S2 cannot be loaded" in capsys.readouterr().err
    assert file.is_file()


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        ("page.txt", ["{folder}"], "let its name end with .html"),
        ("page.html", ["{folder}/none"], "run `contextlab bench`"),
        ("page.html", ["{folder}", "--where", "task=pg19"], "No result fits task=pg19"),
        ("runs/page.html/deep.html", ["{folder}"], "choose another file with -o"),
    ],
)
def test_mistakes_are_one_sentence(
    folder: Path, tmp_path: Path, name: str, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "page.html").write_text("")
    assert main(["page", *(word.format(folder=folder) for word in words), "-o", str(tmp_path / name)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
