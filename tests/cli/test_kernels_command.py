from __future__ import annotations

from pathlib import Path

import pytest
import torch

from contextlab.cli.main import main
from contextlab.kernels.dispatch import VARIABLE

BENCH = ("bench", "--task", "wikitext", "--backbone", "tiny-llama", "--limit", "1", "--tokens", "200")
COMMANDS = {
    "kernels bench": ("kernels", "bench", "--sizes", "toy", "--device", "cpu"),
    "check": ("check", "longmem"),
    "bench": (*BENCH, "--method", "full,longmem", "--device", "cpu"),
}


def refused(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that a command prints for an error."""
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    return printed.err.removeprefix("contextlab: ").strip()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_form_of_the_kernels_that_does_not_exist_is_one_sentence(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VARIABLE, "fast")
    arguments = COMMANDS[command]
    if command == "bench":
        arguments += ("--out", str(tmp_path / "runs"))
    sentence = "CONTEXTLAB_KERNELS=fast is no form of the kernels: set it to reference, torch or triton."
    assert refused(arguments, capsys) == sentence
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("command", ["check", "bench"])
def test_triton_where_it_cannot_run_is_refused_before_anything_is_run(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("triton")
    monkeypatch.setenv(VARIABLE, "triton")
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    monkeypatch.chdir(tmp_path)
    assert "not on a CUDA device, and TRITON_INTERPRET=1 is not set." in refused(COMMANDS[command], capsys)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("device", ["tpu", "meta", "hpu", "privateuseone", "mkldnn", "cuda:99", "0"])
def test_a_device_that_cannot_compute_is_one_sentence(device: str, capsys: pytest.CaptureFixture[str]) -> None:
    sentence = f"Device '{device}' is not available here: use --device cpu."
    assert refused(("kernels", "bench", "--sizes", "toy", "--device", device), capsys) == sentence
    assert refused((*BENCH, "--method", "full", "--device", device), capsys) == sentence


def test_kernels_are_measured_where_times_are_right(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Other devices cannot be synchronised and have no sizes."""
    monkeypatch.setattr("contextlab.backbone.compute_device", lambda name: torch.device(name or "cpu"))
    sentence = "The kernels are measured on cpu or cuda, not on mps: use --device cpu."
    assert refused(("kernels", "bench", "--device", "mps"), capsys) == sentence
