from __future__ import annotations

from pathlib import Path

import pytest
from stored_examples import accurate, keep, line

from contextlab.cli.main import main
from contextlab.reports.plots import KINDS

pytest.importorskip("matplotlib")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for method in ("window", "full"):
        keep(tmp_path / "runs", accurate(method, 0.5), [line("a", 1.0, parts={"accuracy": [[1.0, 1, "a"]]})])
    return tmp_path / "runs"


@pytest.mark.parametrize("suffix", ["pdf", "png", "svg"])
def test_a_picture_is_written_and_its_caption_printed(
    folder: Path, tmp_path: Path, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "made" / f"one.{suffix}"
    assert main(["plot", "pareto", str(folder), "-o", str(file)]) == 0
    assert file.stat().st_size > 1000
    assert capsys.readouterr().out.startswith("Accuracy \N{MINUS SIGN} window against TFLOPs per example, n = ")


def test_a_folder_alone_is_drawn_into_it(folder: Path, tmp_path: Path) -> None:
    assert main(["plot", str(folder)]) == 0
    explicit = tmp_path / "explicit.svg"
    assert main(["plot", "pareto", str(folder), "-o", str(explicit)]) == 0
    assert (folder / "pareto.svg").read_bytes() == explicit.read_bytes()
    assert main(["plot", "pareto"]) == 2


def test_notes_are_printed_where_they_are_asked_for(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["plot", "pareto", str(folder), "-o", str(tmp_path / "one.svg"), "--where", "method=full"]
    assert main(words) == 0
    short = capsys.readouterr().out
    assert "left out: 1 of 2 runs by method=full" in short
    assert main([*words, "--notes"]) == 0
    assert capsys.readouterr().out.startswith(short + "Context own, backbone tiny-llama")


def test_results_of_several_folders_are_one_picture(folder: Path, tmp_path: Path) -> None:
    keep(tmp_path / "more", accurate("hso", 0.7), [])
    both = [str(folder), str(tmp_path / "more")]
    assert main(["plot", "pareto", *both, "-o", str(tmp_path / "one.svg"), "--where", "name=full|hso"]) == 0


@pytest.mark.parametrize("kind", ["pareto", "scatter"])
def test_display_names_stand_in_the_picture_and_its_caption(
    folder: Path, tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    names, file = tmp_path / "names.toml", tmp_path / "one.svg"
    names.write_text('method.full = "dense attention"\nmetric.accuracy = "questions answered"\n')
    words = ["plot", kind, str(folder), "-o", str(file), "--names", str(names), "--baseline", "full"]
    assert main(words) == 0
    shown = capsys.readouterr().out + file.read_text()
    assert "dense attention" in shown
    assert "uestions answered" in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["paretto", "{folder}"], "did you mean 'pareto'"),
        (["pareto", "{folder}", "--x", "flop"], "did you mean 'flops'"),
        (["pareto", "{folder}", "--where", "task=pg19"], "No result fits task=pg19"),
        (["pareto", "{folder}", "--metric", "accurracy"], "did you mean 'accuracy'"),
        (["pareto", "{folder}", "--baseline", "sinks"], "There is no method in these results 'sinks'"),
        (["pareto", "{folder}/none"], "run `contextlab bench`"),
        (["position", "{folder}"], "hold no metric by position"),
        (["controls", "{folder}"], "--context own,none,wrong"),
        (["controls", "{folder}", "--baseline", "full"], "has no --baseline"),
        (["break-even", "{folder}", "--metric", "accuracy"], "has no --metric"),
        (["training", "{folder}"], "contextlab train"),
        (["training", "{folder}", "--where", "n>3"], "has no --where"),
        (["pareto", "{folder}", "--label", "fulll"], "did you mean 'full'"),
    ],
)
def test_mistakes_are_one_sentence_and_leave_no_file(
    folder: Path, tmp_path: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "one.svg"
    assert main(["plot", *(word.format(folder=folder) for word in words), "-o", str(file)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not file.exists()


def test_another_kind_of_file_is_refused_before_anything_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plot", "pareto", "nowhere", "-o", "one.gif"]) == 2
    assert ".pdf, .png, .svg" in capsys.readouterr().err


def test_help_names_every_kind(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plot", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert all(kind in shown for kind in KINDS)
