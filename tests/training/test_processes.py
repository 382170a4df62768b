"""Several processes are as one with all rows: each keeps a part of the moments, and a checkpoint holds all of them."""

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

from contextlab import tensors
from contextlab.training import processes as several
from contextlab.training.processes import Processes, buckets

CODE = """
import json, sys, torch
torch.set_num_threads(1)
import contextlab
options = json.loads(sys.argv[1])
contextlab.train(options.pop("method"), options.pop("corpus"), **options)
"""


def test_one_process_adds_nothing_up() -> None:
    processes = Processes()
    tensors = [torch.ones(3), torch.zeros(2, 2)]
    assert (processes.count, processes.rank, processes.first, processes.device) == (1, 0, True, None)
    assert all(a is b for a, b in zip(processes.add(tensors), tensors, strict=True))
    processes.wait()


def test_moments_are_dealt_evenly() -> None:
    processes = Processes()
    processes.count = 3
    sizes = [5, 90, 40, 30, 30, 1, 60]
    owners = processes.owners([torch.zeros(size) for size in sizes])
    held = [sum(size for size, owner in zip(sizes, owners, strict=True) if owner == rank) for rank in range(3)]
    assert sum(held) == sum(sizes)
    assert max(held) <= 90


def test_tensors_are_exchanged_in_buckets_of_a_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(several, "BUCKET", 10)
    parts = list(buckets([torch.zeros(size) for size in (4, 4, 4, 25, 1, 9, 1)]))
    assert [[parameter.numel() for parameter in part] for part in parts] == [[4, 4], [4], [25], [1, 9], [1]]
    assert list(buckets([])) == []


@pytest.mark.slow
@pytest.mark.parametrize("method", ["longmem(N=32,K=8)", "window(N=24,rank=full)"])
def test_two_processes_are_one_with_all_rows(method: str, tmp_path: Path) -> None:
    texts = folder(tmp_path / "texts")
    options = {"method": method, "corpus": str(texts), "segment": 32, "backbone": "tiny-llama", "device": "cpu"}
    options |= {"schedule": "constant", "warmup": 0.0, "rates": "*.mlp.*:2"}
    environment = {**os.environ, "CONTEXTLAB_CACHE": str(tmp_path / "cache"), "ACCELERATE_USE_CPU": "1"}
    _run({**options, "tokens": 600, "rows": 2, "out": str(tmp_path / "one")}, [environment])
    for tokens in (300, 600):
        two = {**options, "tokens": tokens, "rows": 1, "out": str(tmp_path / "two")}
        _run(two, [{**environment, **rank} for rank in _ranks(2)])
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-4)
    (checkpoint,) = (tmp_path / "two").glob("checkpoint-*")
    assert {"state-0.safetensors", "state-1.safetensors"} <= {path.name for path in checkpoint.iterdir()}
    moments = [_moments(checkpoint / f"{rank}-optimiser.safetensors") for rank in range(2)]
    assert sum(moments) == _moments(next((tmp_path / "one").glob("checkpoint-*")) / "optimiser.safetensors")
    assert max(moments) < 0.6 * sum(moments)
    assert json.loads((tmp_path / "two" / "card.json").read_text())["training"]["processes"] == 2


def _ranks(count: int) -> list[dict[str, str]]:
    """What torchrun tells each of its processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    group = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "LOCAL_WORLD_SIZE": str(count)}
    return [{**group, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]


def _moments(path: Path) -> int:
    """Numbers in the first moments of an optimiser's file."""
    stored, _ = tensors.read(path)
    return sum(tensor.numel() for name, tensor in stored.items() if name.endswith(".exp_avg"))


def _run(options: dict[str, Any], environments: list[dict[str, str]]) -> None:
    command = [sys.executable, "-c", CODE, json.dumps(options)]
    running = [
        subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) for environment in environments
    ]
    for process in running:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors


def losses(out: Path) -> list[float]:
    lines = map(json.loads, (out / "curve.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if "loss" in line]
