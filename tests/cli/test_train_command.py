"""`contextlab train` and `contextlab ls weights`: what they print, and their mistakes in one sentence."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from contextlab import seals, trained
from contextlab.cli import train as command
from contextlab.cli.main import main

WORDS = ["the", "old", "sea", "light", "keeper", "wrote", "again", "of", "ships", "that", "never", "came", "back"]


@pytest.fixture(autouse=True)
def _places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONTEXTLAB_CACHE", str(tmp_path / "cache"))
    texts = tmp_path / "texts"
    texts.mkdir()
    for n in range(6):
        (texts / f"{n}.txt").write_text(" ".join(WORDS[(n * i) % len(WORDS)] for i in range(80)))


def train(tmp_path: Path, *more: str, method: str = "longmem(N=32,K=8)") -> list[str]:
    corpus = [] if "--corpus" in more else ["--corpus", str(tmp_path / "texts")]
    place = ["--out", str(tmp_path / "out"), "--backbone", "tiny-llama", "--device", "cpu"]
    return ["train", method, *corpus, "--tokens", "300", *place, *more]


def test_without_a_folder_the_name_of_the_method_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = train(tmp_path)
    place = words.index("--out")
    assert main([*words[:place], *words[place + 2 :]]) == 0
    assert (tmp_path / "runs" / "train" / "longmem-n-32-k-8" / "card.json").is_file()


def test_it_says_what_was_gained_and_how_to_use_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(train(tmp_path, "--lr", "0.003", "--rows", "2", "--set", "schedule=constant")) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert re.search(r"^longmem\(N=32,K=8\): 3\d\d tokens in 0:00:\d\d, [\d,]+ tokens/s$", out, re.MULTILINE)
    assert re.search(r"^loss on held-back texts \d\.\d{4} -> \d\.\d{4} nats per token$", out, re.MULTILINE)
    assert re.search(r"^content gain \+0\.0000 -> [+-]0\.\d{4} \(standard error", out, re.MULTILINE)
    used = re.search(r"use them as (.*)\.$", out, re.MULTILINE)[1]
    stored = json.loads((tmp_path / "out" / "card.json").read_text())
    assert (stored["training"]["schedule"], stored["training"]["lr"]) == ("constant", 0.003)
    bench = ["bench", "--method", used, "--task", "needle", "--backbone", "tiny-llama", "--limit", "1"]
    assert main([*bench, "--device", "cpu", "--json", "--out", str(tmp_path / "runs")]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["untrained"] is False
    assert result["cost"]["train"]["tokens"] == stored["cost"]["tokens"]
    assert main(["table", str(tmp_path / "runs"), "--cost", "train"]) == 0
    table = capsys.readouterr().out
    assert f"trained on {stored['cost']['tokens']} tokens" in table
    assert "TFLOPs train" in table
    assert "tokens train" in table


def test_with_json_it_prints_the_card_and_nothing_else(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(train(tmp_path, "--json", "--seed", "4", "--segment", "16", "--objective", "teacher(k=4)")) == 0
    out, err = capfd.readouterr()
    assert json.loads(out) == seals.opened((tmp_path / "out" / "card.json").read_text())
    assert json.loads(out)["training"]["objective"] == "teacher(k=4)"
    assert err == ""


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--corpus", "/nowhere"], "There is no corpus /nowhere"),
        (["--set", "lrr=3"], "did you mean 'lr'"),
        (["--lr", "1", "--set", "lr=2"], "lr is given twice"),
        (["--set", "tokens=2"], "tokens is given twice"),
        (["--set", "betas=[0.9]"], "betas"),
        (["--lr", "-3"], "lr=-3.0"),
        (["--tokens", "0"], "tokens"),
        (["--segment", "4000"], "fewer than a segment of 4000"),
        (["--rows", "7"], "use --rows 4 or fewer"),
        (["--objective", "lm("], "bracket after lm"),
    ],
)
def test_mistakes_are_one_sentence(
    more: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(train(tmp_path, *more)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_corpus_that_is_not_utf8_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "texts" / "9.txt").write_bytes(b"\xff")
    assert main(train(tmp_path)) == 2
    assert "9.txt is not UTF-8 (byte 0)" in capsys.readouterr().err


def test_the_live_line_is_written_over(capsys: pytest.CaptureFixture[str]) -> None:
    show = command._live()
    show({"tokens": 0, "validation": {"content_gain": 0.0}})
    show({"tokens": 2048, "loss": 3.5, "tokens_per_second": 100.4, "seconds_left": 3725})
    lines = capsys.readouterr().err.split("\r\x1b[2K")
    assert lines[1:] == [
        "0 tokens, gain +0.0000",
        "2,048 tokens, 100 tokens/s, loss 3.500, gain +0.0000, 1:02:05 left",
    ]


def test_ls_lists_weights_and_what_is_broken_among_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(train(tmp_path)) == 0
    monkeypatch.setenv(trained.FOLDERS, str(tmp_path))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "weights.safetensors").write_bytes(b"")
    (tmp_path / "broken" / "card.json").write_text("{}")
    capsys.readouterr()
    assert main(["ls", "weights"]) == 0
    broken, listed = capsys.readouterr().out.splitlines()[:2]
    assert "broken" in broken
    assert "is no card of trained weights" in broken
    assert re.search(r"^out +longmem\(N=32,K=8\) trained on 3\d\d tokens  \[backbone: tiny-llama\]", listed)
    assert main(["ls", "weights", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[1])["name"] == "out"


def test_ls_weights_imports_nothing_heavy() -> None:
    import subprocess

    code = """
import sys
from contextlab.cli.main import main
assert main(["ls", "weights"]) == 0
assert not {"torch", "transformers"} & set(sys.modules)
"""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stderr) == (0, "")
