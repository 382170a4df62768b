from __future__ import annotations

from typing import Any

import pytest
import torch
from eva_cases import pooling
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import assert_close, gradients
from torch._subclasses import FakeTensorMode

from contextlab.accounting.flops import count
from contextlab.kernels.dispatch import forced
from contextlab.kernels.eva_chunk_compress import blocked, chunk_means, eva_chunk_compress, pool_chunks

LEAVES = ("w", "k", "v")
SIZES = {
    "one": {"tokens": 1},
    "rows": {"tokens": 63, "rows": 2, "width": 48, "features": False},
    "hundred": {"tokens": 100, "chunk": 70, "width": 33},
    "odd": {"tokens": 257, "chunk": 3, "kv_heads": 1},
    "odd means": {"tokens": 257, "chunk": 16, "kv_heads": 3, "features": False, "width": 20},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("size", SIZES)
def test_forward_and_every_gradient_equal_float64(form: str, size: str, dtype: torch.dtype, device: str) -> None:
    if form == "reference" and dtype == torch.float16:
        pytest.skip("the reference computes in the type it is given")
    example = pooling(**SIZES[size], dtype=dtype, device=device)
    truth = example.truth()
    out, expected = example.run(), truth.expected()
    assert out.dtype == dtype
    assert_close(out, expected, dtype, "out")
    pairs = zip(gradients(out, example.leaves), gradients(expected, truth.leaves), LEAVES, strict=True)
    for gradient, expected, name in pairs:
        assert gradient.dtype == dtype
        assert_close(gradient, expected, dtype, name)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 2), st.integers(1, 9), st.booleans(), st.integers(0, 99))
def test_blocks_equal_float64_in_any_shape(
    tokens: Any, chunk: Any, rows: Any, width: Any, features: Any, seed: Any
) -> None:
    example = pooling(tokens, chunk, rows=rows, width=width, features=features, seed=seed).truth()
    blocked.ELEMENTS, saved = 64, blocked.ELEMENTS
    try:
        with forced("torch"):
            out = example.run()
            grads = gradients(out, example.leaves)
    finally:
        blocked.ELEMENTS = saved
    expected = example.expected()
    assert_close(out, expected, torch.float64, "out")
    for gradient, want, name in zip(grads, gradients(expected, example.leaves), LEAVES, strict=True):
        assert_close(gradient, want, torch.float64, name)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 30), st.integers(1, 9))
def test_by_hand_for_all_lengths(length: Any, chunk: Any) -> None:
    """Means divide by the chunk size, weights are over existing tokens."""
    example = pooling(length, chunk).truth()
    w, k, v = example.leaves
    q = torch.randn(1, 4, length, 16, dtype=torch.float64)
    means, pooled = chunk_means(q, chunk, 2), example.expected()
    for n, begin in enumerate(range(0, length, chunk)):
        piece = slice(begin, begin + chunk)
        expected = q[:, :, piece].unflatten(1, (2, 2)).mean(2).sum(2) / chunk
        torch.testing.assert_close(means[:, :, n], expected)
        logits = (k[:, :, piece] * w[:, :, n, None]).sum(-1) - k[:, :, piece].square().sum(-1) / 2
        expected = ((logits * 0.4).softmax(-1)[..., None] * v[:, :, piece]).sum(2)
        torch.testing.assert_close(pooled[:, :, n], expected)


def test_without_direction_plain_pooling_is_the_mean(form: str, device: str) -> None:
    w, k, v = pooling(12, device=device).leaves
    key, value = pool_chunks(w * 0, k, v, chunk=4, scale=0.3)
    torch.testing.assert_close(key, chunk_means(k, 4, 2))
    torch.testing.assert_close(value, chunk_means(v, 4, 2))


def test_chunks_do_not_influence_each_other(form: str, device: str) -> None:
    w, k, v = pooling(12, device=device).leaves
    changed = k.detach().clone()
    changed[:, :, 4:8] += 1
    before, after = (eva_chunk_compress(w, chunk_means(x, 4, 2), x, v, chunk=4, scale=0.3) for x in (k, changed))
    moved = (before - after).abs().amax((0, 1, 3)) > 0
    assert moved.tolist() == [False, True, False]


def test_noise_moves_the_feature() -> None:
    w, k, v = pooling(10).leaves
    mean, noise = torch.randn_like(w), torch.randn_like(w)
    still = eva_chunk_compress(w, mean, k, v, chunk=4, scale=0.3)
    drawn = eva_chunk_compress(w, mean, k, v, chunk=4, scale=0.3, noise_BKnD=noise)
    torch.testing.assert_close(drawn, eva_chunk_compress(w + noise, mean, k, v, chunk=4, scale=0.3))
    assert not torch.allclose(drawn, still)


@pytest.mark.parametrize("features", [True, False])
@pytest.mark.parametrize("tokens", [8, 7])
def test_gradcheck(tokens: int, features: bool) -> None:
    example = pooling(tokens, kv_heads=1, width=2, features=features).truth()

    def run(*leaves: Any) -> Any:
        example.leaves = list(leaves)
        return example.expected()

    assert torch.autograd.gradcheck(run, example.leaves)


@pytest.mark.parametrize("features", [True, False])
def test_flops_count_every_token_once_a_product(features: bool) -> None:
    example = pooling(10, features=features, width=8)
    once = (4 if features else 6) * 2 * 10 * 8
    with torch.no_grad():
        assert count(example.run)[1] == once
    assert count(lambda: gradients(example.run(), example.leaves))[1] == 3 * once


@pytest.mark.parametrize("features", [True, False])
def test_shapes_are_known_and_it_compiles(features: bool) -> None:
    with FakeTensorMode():
        example = pooling(10, features=features)
        out = example.run()
        assert [x.shape for x in gradients(out, example.leaves)] == [x.shape for x in example.leaves]
    example = pooling(10, features=features)
    compiled = torch.compile(lambda: example.run() * 2, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(), example.run() * 2)
    grads = gradients(compiled(), example.leaves)
    for gradient, other in zip(grads, gradients(example.run() * 2, example.leaves), strict=True):
        torch.testing.assert_close(gradient, other)


def test_nothing_in_is_nothing_out(form: str) -> None:
    w, k, v = pooling(4).leaves
    assert eva_chunk_compress(w[:, :, :0], w[:, :, :0], k[:, :, :0], v[:, :, :0], chunk=4, scale=1.0).numel() == 0
