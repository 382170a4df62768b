from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

KERNELS = 17
SHARED_MEMORY = 227 * 1024


def test_every_kernel_compiles_for_a_gpu_within_its_registers(tmp_path: Path) -> None:
    """In bfloat16 and float32 at a width of 64, with a tile that needs no more than a Hopper GPU has."""
    pytest.importorskip("triton")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    command = [sys.executable, Path(__file__).with_name("compile_kernels.py"), "64"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    built = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(built) == 2 * KERNELS
    assert not [kernel for kernel in built if kernel["spilled"] or kernel["shared"] > SHARED_MEMORY]
