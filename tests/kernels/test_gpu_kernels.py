"""Tests that need a GPU: bfloat16, large sizes, and races between programs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from eva_cases import Attention, Pooling, attention, pooling
from kernel_cases import assert_close, case, gradients
from operations import OPERATIONS, SCALE, Sizes, in_float64
from torch import Tensor

from contextlab.kernels.chunk_topk import chunk_topk
from contextlab.kernels.dispatch import forced
from contextlab.kernels.joint_memory_attention import local_attention

pytestmark = pytest.mark.gpu

SIZES = {
    "paper": {"queries": 1024, "heads": 16, "kv_heads": 16, "width": 64, "chunks": 4096, "take": 16},
    "grouped": {"queries": 777, "heads": 8, "kv_heads": 2, "width": 128, "chunks": 300, "take": 5, "rows": 3},
    "continued": {"queries": 100, "keys": 1500, "heads": 4, "kv_heads": 4, "width": 80, "chunk": 2, "take": 7},
    "generation": {"queries": 1, "keys": 1000, "heads": 16, "kv_heads": 4, "width": 64, "rows": 4, "take": 16},
}


@pytest.fixture(autouse=True)
def _needs_a_gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("size", SIZES)
def test_forward_and_every_gradient_equal_float64(size: Any, dtype: Any) -> None:
    example = case(**SIZES[size], dtype=dtype, device="cuda")
    truth = example.truth()
    with forced("triton"):
        out = example.run()
        grads = gradients(out, example.leaves)
    expected = truth.expected()
    assert_close(out, expected, dtype, "out")
    for i, (gradient, want) in enumerate(zip(grads, gradients(expected, truth.leaves), strict=True)):
        assert_close(gradient, want, dtype, str(i))


def test_no_two_runs_differ() -> None:
    example = case(**SIZES["paper"], dtype=torch.bfloat16, device="cuda")
    first = example.run()
    first_gradients = gradients(first, example.leaves[:4])
    for _ in range(30):
        again = example.run()
        assert torch.equal(again, first)
        for gradient, other in zip(gradients(again, example.leaves[:4]), first_gradients, strict=True):
            assert torch.equal(gradient, other)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("queries", "chunks"), [(1024, 16384), (1, 16384), (333, 5000)])
def test_search_of_a_large_bank_has_one_answer(queries: Any, chunks: Any, dtype: Any) -> None:
    # Whole numbers: exact in every type, with many ties.
    q = torch.randint(-2, 3, (2, 8, queries, 64), device="cuda").to(dtype)
    mean = torch.randint(-2, 3, (2, 4, chunks, 64), device="cuda").to(dtype)
    count = torch.tensor([chunks, chunks // 3], device="cuda")
    with forced("reference"):
        expected = chunk_topk(q, mean, count, 16)
    for _ in range(5):
        matches = chunk_topk(q, mean, count, 16)
        assert all(torch.equal(match, other) for match, other in zip(matches, expected, strict=True))


def test_a_bank_beyond_four_gigabytes_is_addressed() -> None:
    example = case(64, heads=2, kv_heads=1, width=128, chunks=16, dtype=torch.bfloat16, device="cuda")
    far = 5 * 2**20
    bank_k, bank_v = (torch.zeros(1, 1, far + 16, 4, 128, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    near = [x.detach() for x in example.leaves[4:6]]
    for bank, x in zip((bank_k, bank_v), near, strict=True):
        bank[:, :, far:] = x
    example.leaves[4:6] = near
    expected = example.run()
    example.leaves[4:6] = [bank_k, bank_v]
    example.ids = example.ids + far
    assert torch.equal(example.run(), expected)


def test_a_long_local_part() -> None:
    q, k, v = (torch.randn(1, 4, 16384, 128, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.1)
    assert_close(local_attention(q, k, v, scale=0.1), expected, torch.bfloat16, "out")


def test_compiles_around_the_kernels() -> None:
    example = case(**SIZES["paper"], dtype=torch.bfloat16, device="cuda")
    compiled = torch.compile(lambda: example.run() * 2, fullgraph=True)
    torch.testing.assert_close(compiled(), example.run() * 2)


EVA_SIZES = {
    "paper": {"queries": 4096, "heads": 16, "kv_heads": 16, "width": 64, "chunks": 64, "window": 512},
    "grouped": {"queries": 777, "heads": 8, "kv_heads": 2, "width": 128, "chunks": 300, "window": 64, "overlap": True},
    "continued": {"queries": 100, "keys": 1500, "heads": 4, "kv_heads": 4, "width": 80, "chunks": 100, "rows": 3},
    "generation": {"queries": 1, "keys": 1000, "heads": 16, "kv_heads": 4, "width": 64, "rows": 4, "chunks": 640},
}
POOLING_SIZES = {
    "paper": {"tokens": 8192, "chunk": 128, "width": 64, "kv_heads": 16, "features": True},
    "ragged": {"tokens": 1001, "chunk": 16, "width": 80, "rows": 3, "features": False},
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("size", [*EVA_SIZES, *(f"pool {name}" for name in POOLING_SIZES)])
def test_eva_equals_float64_forward_and_in_every_gradient(size: Any, dtype: Any) -> None:
    example: Attention | Pooling
    if size in EVA_SIZES:
        example = attention(**EVA_SIZES[size], dtype=dtype, device="cuda")
    else:
        example = pooling(**POOLING_SIZES[size.removeprefix("pool ")], dtype=dtype, device="cuda")
    truth = example.truth()
    with forced("triton"):
        out = example.run()
        grads = gradients(out, example.leaves)
    expected = truth.expected()
    assert_close(out, expected, dtype, "out")
    for i, (gradient, want) in enumerate(zip(grads, gradients(expected, truth.leaves), strict=True)):
        assert_close(gradient, want, dtype, str(i))


def test_no_two_runs_of_eva_differ() -> None:
    for example in (
        attention(**EVA_SIZES["paper"], dtype=torch.bfloat16, device="cuda"),
        pooling(**POOLING_SIZES["paper"], dtype=torch.bfloat16, device="cuda"),
    ):
        first = example.run()
        first_gradients = gradients(first, example.leaves)
        for _ in range(20):
            again = example.run()
            assert torch.equal(again, first)
            for gradient, other in zip(gradients(again, example.leaves), first_gradients, strict=True):
                assert torch.equal(gradient, other)


def test_torch_forms_of_eva_are_right_on_a_gpu() -> None:
    for size in ("grouped", "continued"):
        example = attention(**EVA_SIZES[size], bias=size == "continued", device="cuda")
        truth = example.truth()
        with forced("torch"):
            out = example.run()
            grads = gradients(out, example.leaves)
        for gradient, want in zip(grads, gradients(truth.expected(), truth.leaves), strict=True):
            assert_close(gradient, want, torch.float32, size)


JOINED = {
    "paper": Sizes(B=1, H=32, K=8, T=256, older=1020, D=128, n=4096, c=4, m=16),
    "ragged": Sizes(B=3, H=6, K=2, T=333, older=71, D=80, n=300, c=3, m=5),
    "generation": Sizes(B=2, H=16, K=4, T=1, older=5000, D=64, n=640, c=4, m=16),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("size", JOINED)
@pytest.mark.parametrize("name", ["retrieval_attention", "sink_attention"])
def test_parts_of_one_softmax_equal_float64_forward_and_in_every_gradient(name: Any, size: Any, dtype: Any) -> None:
    operation = OPERATIONS[name]
    arguments = operation.arguments(JOINED[size], torch.Generator().manual_seed(0), False)
    floating = {n: x.to(dtype) for n, x in arguments.items() if isinstance(x, Tensor) and x.is_floating_point()}
    arguments = {n: x.cuda() if isinstance(x, Tensor) else x for n, x in {**arguments, **floating}.items()}
    for key in ("q", "q_memory", "q_sink"):
        # Logits of about 1, whatever the width.
        if key in arguments:
            arguments[key] = arguments[key] * (JOINED[size].D ** -0.5 / SCALE)
    stored = operation.with_gradients(arguments)
    exact = operation.with_gradients(in_float64(stored))
    with forced("triton"):
        (out,) = operation.run(stored)
        grads = gradients(out, operation.leaves_of(stored))
    (expected,) = operation.expected(exact)
    assert_close(out, expected, dtype, "out")
    wanted = gradients(expected, operation.leaves_of(exact))
    for leaf, gradient, want in zip(operation.leaves, grads, wanted, strict=True):
        assert_close(gradient, want, dtype, leaf)
