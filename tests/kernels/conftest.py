from __future__ import annotations

from collections.abc import Iterator
from importlib import util

import pytest
import torch

from contextlab.kernels.dispatch import FORMS, VARIABLE


@pytest.fixture(autouse=True)
def _fresh_memory_is_nan() -> Iterator[None]:
    """Makes missing writes of an operation visible."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each form of the kernels."""
    if request.param == "triton" and util.find_spec("triton") is None:
        pytest.skip("triton is not installed")
    monkeypatch.setenv(VARIABLE, request.param)
    chosen: str = request.param
    return chosen


@pytest.fixture
def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"
