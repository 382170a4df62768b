"""The form of an operation that runs: Triton on CUDA, blocked torch elsewhere, or what CONTEXTLAB_KERNELS names."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import util

import torch
from torch import Tensor
from torch._subclasses import FakeTensor
from torch.utils._mode_utils import no_dispatch

from contextlab.errors import UserError

VARIABLE = "CONTEXTLAB_KERNELS"
FORMS = ("reference", "torch", "triton")
TRITON_TYPES = (torch.float32, torch.float16, torch.bfloat16)
LAUNCHES = {
    "chunk_topk": 9,
    "local_attention": 1,
    "fuse_memory": 1,
    "eva_attention": 1,
    "pool_chunks": 1,
    "sink_attention": 12,
    "retrieval_attention": 2,
}
"""Kernels that a GPU is given by one call of an operation without gradients. The search is one kernel of ours, and what
puts the queries into rows, and takes the best of all parts and their scores out of its packed integers. Retrieval is
one for the local keys and one for the chunks; sinks are one for each of their two parts, and what makes the mask and
joins them. A single token after many keys takes about eight more for each part whose keys are divided, which join its
pieces."""


def forced_form() -> str | None:
    """The form that the environment variable names; None when it is not set.

    Raises:
        UserError: for a form that does not exist.
    """
    form = os.environ.get(VARIABLE) or None
    if form is not None and form not in FORMS:
        raise UserError(f"{VARIABLE}={form} is no form of the kernels: set it to reference, torch or triton.")
    return form


@contextmanager
def forced(form: str) -> Iterator[None]:
    """Run one form inside a `with` block."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = form
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before


def interpreted() -> bool:
    """Whether Triton runs its kernels in the interpreter; this is decided before Triton is imported."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def use_triton(*floating: Tensor) -> bool:
    """Whether Triton computes on these tensors.

    Raises:
        UserError: when the environment variable names Triton and it cannot run.
    """
    return _triton_runs(floating[0].device, {tensor.dtype for tensor in floating})


def check(device: torch.device, dtype: torch.dtype) -> None:
    """Check that the kernels can run in the form that the environment variable names.

    Raises:
        UserError: when they cannot.
    """
    _triton_runs(device, {dtype})


def _triton_runs(device: torch.device, types: set[torch.dtype]) -> bool:
    form = forced_form()
    if form != "triton" and (form is not None or device.type != "cuda"):
        return False
    reason = _obstacle(device, types)
    if reason is not None and form == "triton":
        raise UserError(f"{VARIABLE}=triton is not possible: {reason}.")
    return reason is None


def _obstacle(device: torch.device, types: set[torch.dtype]) -> str | None:
    if util.find_spec("triton") is None:
        return "triton is not installed (pip install 'contextlab[kernels]')"
    if device.type != "cuda" and not interpreted():
        return "the tensors are not on a CUDA device, and TRITON_INTERPRET=1 is not set"
    if interpreted() and torch.bfloat16 in types:
        return "Triton's interpreter computes wrong numbers in bfloat16, use float32 or float16"
    if not types <= set(TRITON_TYPES):
        return "it takes float32, float16 and bfloat16 only"
    return None


def readable(x: Tensor) -> bool:
    """Whether the values of a tensor can be read without waiting for a device."""
    return x.device.type == "cpu" and not isinstance(x, FakeTensor) and not torch.compiler.is_compiling()


def total(counts: Tensor, most: int = 1) -> int:
    """The sum of integers or booleans; every element counts as `most` where the tensor holds no data."""
    if isinstance(counts, FakeTensor) or counts.is_meta:
        return counts.numel() * most
    with no_dispatch():
        return int(counts.sum())
