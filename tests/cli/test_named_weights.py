"""Names of trained weights where commands take a method."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from toy_weights import method, moved, write

from contextlab import trained
from contextlab.cli.main import main
from contextlab.testing import laws


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(trained.FOLDERS, str(tmp_path))
    write(tmp_path / "one", moved(method(N=32, reduction=1, weights="none"), 0.01), recommended=True)
    return tmp_path


def test_bench_takes_a_name_and_a_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["--task", "needle", "--backbone", "tiny-gpt2", "--limit", "1", "--device", "cpu", "--no-count", "--json"]
    for name in ("one", str(folder / "one")):
        assert main(["bench", "--method", name, *common, "--out", str(folder / "runs")]) == 0
        result = json.loads(capsys.readouterr().out)
        assert (result["method"], result["method_config"]["N"], result["untrained"]) == ("longmem", 32, False)


def test_check_takes_the_settings_and_leaves_the_weights(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert folder
    names = []
    model = laws.backbones.load("tiny-llama")
    monkeypatch.setattr(laws, "check", lambda make, _families: names.append(make(model)) or [])
    assert main(["check", "one", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"method": "one", "passed": True, "laws": []}
    assert (names[0].config.N, names[0].untrained) == (32, True)


def test_check_says_of_weights_for_a_large_model_that_small_ones_have_no_room(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["check", "longmem-difference"]) == 2
    sentence = capsys.readouterr().err
    assert "The laws are checked on small models, which longmem-difference does not fit" in sentence
    assert "check it with other settings" in sentence


def test_ls_shows_what_a_name_stands_for(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", "methods", "one"]) == 0
    text = capsys.readouterr().out
    assert "longmem trained on 5 tokens" in text
    assert "  N              integer > 0 or null, default 32" in text
    assert main(["ls", "methods", "longmem", "--json"]) == 0
    line = json.loads(capsys.readouterr().out)
    assert "one beside tiny-gpt2" in line["stands for"]
    assert line["settings"][0]["name"] == "form"
    assert main(["ls", "weights"]) == 0
    assert "[stands for: longmem]" in capsys.readouterr().out
    assert folder


def test_training_begins_with_weights_that_are_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = folder / "corpus"
    corpus.mkdir()
    for number in range(4):
        (corpus / f"{number}.txt").write_text(f"{number} a story of many words. " * 400)
    options = ["--corpus", str(corpus), "--tokens", "64", "--backbone", "tiny-gpt2", "--device", "cpu"]
    options += ["--set", "documents=2", "--set", "history=64", "--rows", "1", "--json"]
    begun_with = {}
    for name in ("one", "longmem(N=32)", "longmem"):
        assert main(["train", name, *options, "--out", str(folder / f"out-{name}")]) == 0
        card = json.loads(capsys.readouterr().out)
        begun_with[name] = card["begun_with"] is not None
        assert (card["method"], "weights" in card["label"]) == ("longmem", False)
        assert card["free"] == sorted(card["free"]) != []
    assert begun_with == {"one": True, "longmem(N=32)": False, "longmem": False}


def bench(folder: Path, method: str, *options: str) -> int:
    common = ["--task", "needle", "--backbone", "tiny-gpt2", "--limit", "2", "--device", "cpu", "--no-count"]
    return main(["bench", "--method", method, *common, "--out", str(folder / "runs"), *options])


def test_a_line_above_the_table_says_what_a_name_alone_stands_for(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(folder, "window,longmem") == 0
    printed = capsys.readouterr()
    sentence = "longmem stands for one, trained on 5 tokens: write longmem(form=paper) for the paper's form."
    assert printed.out.lstrip().startswith(sentence)
    assert "one: longmem(N=32,reduction=1), trained on 5 tokens." in " ".join(printed.out.split())
    assert sentence not in printed.err
    assert bench(folder, "longmem", "--json") == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["weights_name"] == "one"
    assert sentence in printed.err
    assert bench(folder, "longmem(form=paper)") == 0
    printed = capsys.readouterr()
    assert "stands for" not in printed.out
    assert "form=paper; untrained" in printed.out


def test_weights_that_were_found_and_trained_otherwise_are_said_on_standard_error(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(folder, "longmem(N=32,reduction=1,K=8)", "--json") == 0
    printed = capsys.readouterr()
    assert "one(K=8) has weights that were trained with K=64: write weights=none to leave them out." in printed.err
    assert json.loads(printed.out)["trained_with"] == {"K": 64}
    assert bench(folder, "longmem(N=32,reduction=1)", "--json") == 0
    assert "trained with" not in capsys.readouterr().err
