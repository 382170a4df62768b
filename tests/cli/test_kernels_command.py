from __future__ import annotations

import pytest
import torch

from contextlab.cli.main import main

BENCH = ("bench", "--task", "wikitext", "--backbone", "tiny-llama", "--limit", "1", "--tokens", "200")


def refused(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that a refused command prints."""
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    return printed.err.removeprefix("contextlab: ").strip()


@pytest.mark.parametrize("device", ["tpu", "meta", "hpu", "privateuseone", "mkldnn", "cuda:99", "0"])
def test_a_device_that_cannot_compute_is_one_sentence(device: str, capsys: pytest.CaptureFixture[str]) -> None:
    sentence = f"Device '{device}' is not available here: use --device cpu."
    assert refused(("kernels", "bench", "--sizes", "toy", "--device", device), capsys) == sentence
    assert refused((*BENCH, "--method", "full", "--device", device), capsys) == sentence


def test_kernels_are_measured_where_times_are_right(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Elsewhere nothing waits for the device, and there are no sizes."""
    monkeypatch.setattr("contextlab.backbone.compute_device", lambda name: torch.device(name or "cpu"))
    sentence = "The kernels are measured on cpu or cuda, not on mps: use --device cpu."
    assert refused(("kernels", "bench", "--device", "mps"), capsys) == sentence
