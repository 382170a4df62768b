"""Several processes: gradients are added up as if one process had all rows, and a checkpoint holds them all."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from toy_corpus import folder

from contextlab.training.processes import Processes

CODE = """
import json, sys, torch
torch.set_num_threads(1)
import contextlab
options = json.loads(sys.argv[1])
contextlab.train("longmem(N=32,K=8)", options.pop("corpus"), **options)
"""


def test_one_process_adds_nothing_up() -> None:
    processes = Processes()
    tensors = [torch.ones(3), torch.zeros(2, 2)]
    assert (processes.count, processes.rank, processes.first, processes.device) == (1, 0, True, None)
    assert all(a is b for a, b in zip(processes.add(tensors), tensors, strict=True))
    processes.wait()


@pytest.mark.slow
def test_two_processes_are_one_with_all_rows(tmp_path: Path) -> None:
    texts = folder(tmp_path / "texts")
    options = {"corpus": str(texts), "tokens": 600, "segment": 32, "backbone": "tiny-llama", "device": "cpu"}
    environment = {**os.environ, "CONTEXTLAB_CACHE": str(tmp_path / "cache"), "ACCELERATE_USE_CPU": "1"}
    _run({**options, "rows": 2, "out": str(tmp_path / "one")}, [environment])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    group = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "LOCAL_WORLD_SIZE": "2"}
    ranks = [{**environment, **group, "RANK": str(n), "LOCAL_RANK": str(n)} for n in range(2)]
    two = {**options, "rows": 1, "out": str(tmp_path / "two")}
    _run({**two, "tokens": 600}, ranks)
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-4)
    names = {path.name for path in next((tmp_path / "two").glob("checkpoint-*")).iterdir()}
    assert {"state-0.safetensors", "state-1.safetensors"} <= names
    assert json.loads((tmp_path / "two" / "card.json").read_text())["training"]["processes"] == 2


def _run(options: dict[str, Any], environments: list[dict[str, str]]) -> None:
    command = [sys.executable, "-c", CODE, json.dumps(options)]
    running = [subprocess.Popen(command, env=one, stderr=subprocess.PIPE, text=True) for one in environments]
    for process in running:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors


def losses(out: Path) -> list[float]:
    lines = map(json.loads, (out / "curve.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if "loss" in line]
