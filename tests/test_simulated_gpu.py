"""On a simulated device that counts them: no method waits for the device where transformers does not.

The simulation patches torch for its whole process, so that it runs in one of its own.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

LINE = re.compile(r"^## (\w+): read1024 (\{.*?\})  decode/step (\{.*?\})", re.MULTILINE)
Counts = dict[str, tuple[dict[str, float], dict[str, float]]]
METHODS = ("full", "window", "sliding", "sinks", "retrieval", "longmem", "evalm")


@pytest.fixture(scope="module")
def counts(shared: Path) -> Counts:
    """By method: what 1,024 tokens that are read silently cost with two layers, and what a decoded token costs."""
    script = shared / "tools" / "simulated_gpu" / "counts.py"
    if not script.is_file():
        pytest.skip("the simulated device is not here")
    environment = {**os.environ, "L": "2", "CONTEXTLAB_KERNELS": "torch"}
    done = subprocess.run([sys.executable, str(script), *METHODS], env=environment, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    return {name: (ast.literal_eval(read), ast.literal_eval(step)) for name, read, step in LINE.findall(done.stdout)}


@pytest.mark.parametrize("name", METHODS)
def test_no_silently_read_block_waits_for_the_device(counts: Counts, name: str) -> None:
    assert counts[name][0]["sync"] == 0


@pytest.mark.parametrize("name", METHODS)
def test_a_decoded_token_waits_once_for_its_choice(counts: Counts, name: str) -> None:
    assert counts[name][1]["sync"] <= 1
