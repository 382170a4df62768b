from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    # Triton decides at its import, in the first test that needs it, whether kernels run in the interpreter.
    os.environ["TRITON_INTERPRET"] = "1"
# The models are too small for several threads, in the processes that tests start too.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Time never decides a test.
hypothesis.settings.register_profile("contextlab", deadline=None)
hypothesis.settings.load_profile("contextlab")

SHARED = Path(os.environ.get("CONTEXTLAB_SHARED", Path(__file__).parents[2] / "shared"))

Fixture = tuple[dict[str, Any], dict[str, torch.Tensor]]


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference numbers and data, which users of the package do not have."""
    if not SHARED.is_dir():
        pytest.skip(f"reference data not found at {SHARED}")
    return SHARED


@pytest.fixture(scope="session")
def fixture(shared: Path) -> Callable[[str], Fixture]:
    """Loads `folder/name`: its description and its arrays as tensors."""

    def load(name: str) -> Fixture:
        path = shared / "fixtures" / name
        with np.load(path.with_suffix(".npz")) as arrays:
            tensors = {key: torch.from_numpy(arrays[key]) for key in arrays.files}
        description = path.with_suffix(".json")
        return (json.loads(description.read_text()) if description.is_file() else {}), tensors

    return load


@pytest.fixture(autouse=True)
def _same_numbers_every_time() -> None:
    torch.manual_seed(0)
