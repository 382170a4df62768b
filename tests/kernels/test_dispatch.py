from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch

from contextlab.backbone import load
from contextlab.errors import UserError
from contextlab.kernels import dispatch
from contextlab.kernels.joint_memory_attention import local_attention


def attend(dtype: Any = torch.float32) -> Any:
    x = torch.randn(1, 1, 2, 4, dtype=dtype)
    return local_attention(x, x, x, scale=1.0)


def test_a_cpu_runs_blocks_unless_a_form_is_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(dispatch.VARIABLE, raising=False)
    assert not dispatch.use_triton(torch.zeros(1))
    with dispatch.forced("torch"):
        assert dispatch.forced_form() == "torch"
        assert not dispatch.use_triton(torch.zeros(1))
    assert dispatch.forced_form() is None


def test_forcing_ends_with_the_block_and_nests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(dispatch.VARIABLE, "torch")
    with dispatch.forced("reference"), pytest.raises(KeyError), dispatch.forced("triton"):
        raise KeyError
    assert dispatch.forced_form() == "torch"


def test_an_unknown_form_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(dispatch.VARIABLE, "fast")
    with pytest.raises(UserError, match="CONTEXTLAB_KERNELS=fast is no form of the kernels: set it to reference"):
        attend()


@pytest.mark.parametrize(
    ("interpret", "dtype", "sentence"),
    [
        ("0", torch.float32, "not on a CUDA device, and TRITON_INTERPRET=1 is not set"),
        ("1", torch.bfloat16, "interpreter computes wrong numbers in bfloat16"),
        ("1", torch.float64, "it takes float32, float16 and bfloat16 only"),
    ],
)
def test_triton_where_it_cannot_run_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, interpret: str, dtype: torch.dtype, sentence: str
) -> None:
    pytest.importorskip("triton")
    monkeypatch.setenv(dispatch.VARIABLE, "triton")
    monkeypatch.setenv("TRITON_INTERPRET", interpret)
    with pytest.raises(UserError, match=sentence):
        attend(dtype)


def test_what_cannot_run_is_known_before_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    cpu = torch.device("cpu")
    for form in ("reference", "torch"):
        with dispatch.forced(form):
            dispatch.check(cpu, torch.float64)
    monkeypatch.setenv(dispatch.VARIABLE, "triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    dispatch.check(cpu, torch.float32)
    with pytest.raises(UserError, match="it takes float32, float16 and bfloat16 only"):
        dispatch.check(cpu, torch.float64)
    with pytest.raises(UserError, match="computes wrong numbers in bfloat16"):
        load("tiny-llama", device="cpu", dtype="bfloat16")


def test_triton_that_is_not_installed_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch.util, "find_spec", lambda name: None)
    monkeypatch.setenv(dispatch.VARIABLE, "triton")
    with pytest.raises(UserError, match=r"triton is not installed \(pip install 'contextlab\[kernels\]'\)."):
        attend()


def test_the_kernels_are_imported_without_triton() -> None:
    code = """
import sys
sys.modules["triton"] = None
from contextlab.kernels import chunk_topk, eva_attention, eva_chunk_compress, joint_memory_attention
print(sorted(name for name in sys.modules if name.startswith("contextlab.kernels") and "triton" in name))
"""
    environment = {name: value for name, value in os.environ.items() if name != dispatch.VARIABLE}
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, check=True, env=environment, capture_output=True, text=True).stdout == "[]\n"


def test_totals_are_known_with_and_without_data() -> None:
    assert dispatch.total(torch.tensor([True, False, True])) == 2
    assert dispatch.total(torch.tensor([3, 4]), most=9) == 7
    assert dispatch.total(torch.empty(2, device="meta"), most=9) == 18
