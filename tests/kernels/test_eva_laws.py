"""Laws of EVA attention and chunk compression in every form."""

from __future__ import annotations

from importlib import util
from typing import Any

import pytest
import torch
from eva_cases import LEAVES, attention, pooling
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import assert_close, gradients
from torch import Tensor

from contextlab.kernels import part
from contextlab.kernels.dispatch import forced
from contextlab.kernels.eva_attention import ops
from contextlab.kernels.eva_attention import reference as plain
from contextlab.kernels.eva_chunk_compress import chunk_means, eva_chunk_compress

needs_triton = pytest.mark.skipif(util.find_spec("triton") is None, reason="triton is not installed")


@needs_triton
@settings(max_examples=12, deadline=None)
@given(
    st.integers(1, 90),
    st.integers(0, 70),
    st.sampled_from([(1, 1), (4, 2), (3, 1)]),
    st.integers(0, 80),
    st.sampled_from([None, 3, 32, 64]),
    st.booleans(),
    st.integers(1, 40),
)
def test_triton_equals_float64_in_any_shape(
    queries: Any, older: Any, heads: Any, chunks: Any, window: Any, flag: Any, width: Any
) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    shape = {"heads": heads[0], "kv_heads": heads[1], "chunks": chunks, "window": window, "width": width}
    example = attention(
        queries, queries + older, **shape, counts=flag, overlap=flag and window is not None, device=device
    )
    truth = example.truth()
    with forced("triton"):
        out = example.run()
        grads = gradients(out, example.leaves)
    expected = truth.expected()
    assert_close(out, expected, torch.float32, "out")
    for gradient, want, name in zip(grads, gradients(expected, truth.leaves), LEAVES, strict=False):
        if name != "chunk_bias":  # a sum over all queries that may cancel
            assert_close(gradient, want, torch.float32, name)


@needs_triton
@settings(max_examples=12, deadline=None)
@given(st.integers(1, 150), st.integers(1, 90), st.integers(1, 2), st.integers(1, 40), st.booleans())
def test_triton_pools_like_float64_in_any_shape(tokens: Any, chunk: Any, rows: Any, width: Any, features: Any) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    example = pooling(tokens, chunk, rows=rows, width=width, features=features, device=device)
    truth = example.truth()
    with forced("triton"):
        out = example.run()
        grads = gradients(out, example.leaves)
    expected = truth.expected()
    assert_close(out, expected, torch.float32, "out")
    for gradient, want, name in zip(grads, gradients(expected, truth.leaves), "wkv", strict=True):
        assert_close(gradient, want, torch.float32, name)


@pytest.mark.parametrize("size", [{"window": 32, "overlap": True}, {"keys": 333}, {"bias": True, "keys": 333}])
def test_tiles_written_out_are_the_same_operation(size: dict[str, bool | int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The form for a GPU without Triton."""

    def tiled_backward(
        dout: Any,
        out: Any,
        lse: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: Any,
        scale: float,
        causal: Any,
        *,
        into_bias: Any,
    ) -> Any:
        return part.tiled_backward(dout, out, lse, q, k, v, bias, scale, causal=causal, into_bias=into_bias)

    example = attention(300, **{"heads": 4, "kv_heads": 2, **size}).truth()
    out = example.run()
    grads = gradients(out, example.leaves)
    monkeypatch.setattr(part, "forward", part.tiled_forward)
    monkeypatch.setattr(part, "backward", tiled_backward)
    again = example.run()
    torch.testing.assert_close(again, out)
    for gradient, other in zip(gradients(again, example.leaves), grads, strict=True):
        torch.testing.assert_close(gradient, other)


def test_what_is_not_seen_has_no_influence_and_no_gradient(form: str, device: str) -> None:
    example = attention(30, 40, window=8, counts=False, device=device)
    example.counts = torch.full((1, 30), 3, device=device)
    out = example.run()
    changed = attention(30, 40, window=8, counts=False, device=device)
    changed.counts = example.counts
    with torch.no_grad():
        # Queries begin with token 10, whose window begins with token 8.
        for name in ("k", "v"):
            changed.tensors[name][:, :, :8] = 7.0
        for name in ("chunk_k", "chunk_v"):
            changed.tensors[name][:, :, 3:] = -9.0
    assert torch.equal(changed.run(), out)
    _, dk, dv, dchunk_k, dchunk_v, _ = gradients(out, example.leaves)
    for gradient in (dk[:, :, :8], dv[:, :, :8], dchunk_k[:, :, 3:], dchunk_v[:, :, 3:]):
        assert torch.equal(gradient, torch.zeros_like(gradient))
    assert all(gradient.abs().max() > 0 for gradient in (dk, dv, dchunk_k, dchunk_v))


def test_a_window_of_all_keys_is_none_and_counts_of_all_chunks_too(form: str, device: str) -> None:
    example = attention(50, 70, counts=False, device=device)
    out = example.run()
    for window in (70, 71, 1000):
        example.window = window
        assert torch.equal(example.run(), out)
    example.counts = torch.full((1, 50), 10**6, device=device)
    torch.testing.assert_close(example.run(), out)


@pytest.mark.parametrize(("wrong", "nearest"), [(6, 5), (2**32 + 3, 5), (-1, 0), (-(2**32) + 3, 0)])
def test_more_chunks_than_there_are_is_all_and_less_than_none_is_none(
    form: str, wrong: int, nearest: int, device: str
) -> None:
    """Forward and backward, without reading outside of the chunks."""
    example = attention(9, device=device)
    q, k, v, chunk_k, chunk_v, chunk_bias = (x.detach() for x in example.leaves)

    def run(count: int) -> Any:
        counts = torch.full((1, 9), 3, device=device)
        counts[0, 2:5] = count
        inputs = (q, k, v, chunk_k, chunk_v, None, counts, chunk_bias)
        if form == "reference":
            return (plain.eva_attention(*inputs, 0.3, 9, 0),)
        module = ops._form(q, None)
        outputs = module.forward(*inputs, 0.3, 9, 0)
        return (*outputs, *module.backward(torch.ones_like(q), *inputs, *outputs, 0.3, 9, 0, False, True))

    for result, other in zip(run(wrong), run(nearest), strict=True):
        assert torch.equal(result, other)


def test_a_chunk_of_one_token_counts_as_that_token(form: str, device: str) -> None:
    """Some local keys are passed as chunks: the softmax is over all of them."""
    example = attention(20, 60, counts=False, chunks=0, chunk_bias=False, device=device)
    out = example.run()
    k, v = example.tensors["k"], example.tensors["v"]
    moved = {"chunk_k": k[:, :, :40], "chunk_v": v[:, :, :40], "k": k[:, :, 40:], "v": v[:, :, 40:]}
    example.tensors = {name: moved.get(name, x) for name, x in example.tensors.items()}
    torch.testing.assert_close(example.run(), out)


def test_how_tensors_lie_in_memory_does_not_matter(form: str, device: str) -> None:
    example = attention(20, 30, heads=4, kv_heads=2, rows=2, device=device)
    out = example.run()
    example.tensors |= {
        name: example.tensors[name].transpose(1, 2).contiguous().transpose(1, 2) for name in ("q", "k", "v", "chunk_k")
    }
    torch.testing.assert_close(example.run(), out)
    pool = pooling(30, rows=2, device=device)
    out = pool.run()
    pool.leaves[1] = pool.leaves[1].contiguous()
    pool.leaves[2] = pool.leaves[2].transpose(-1, -2).contiguous().transpose(-1, -2)
    torch.testing.assert_close(pool.run(), out)


def test_heads_of_one_group_share_their_gradient(form: str, device: str) -> None:
    """Grouped heads are repeated key heads."""
    example = attention(20, heads=4, kv_heads=2, window=8, device=device)
    names = ("k", "v", "chunk_k", "chunk_v")
    grads = dict(zip(example.tensors, gradients(example.run(), example.leaves), strict=True))
    example.tensors |= {name: example.tensors[name].detach().repeat_interleave(2, 1).requires_grad_() for name in names}
    repeated = dict(zip(example.tensors, gradients(example.run(), example.leaves), strict=True))
    for name in names:
        torch.testing.assert_close(repeated[name].unflatten(1, (2, 2)).sum(2), grads[name], atol=1e-5, rtol=1e-4)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 30), st.integers(1, 9), st.sampled_from([(4, 2), (3, 3), (4, 1)]))
def test_means_of_means_are_means(tokens: Any, chunk: Any, heads: Any) -> None:
    x = torch.randn(2, heads[0], tokens, 5, dtype=torch.float64, requires_grad=True)
    means = chunk_means(x, chunk, heads[1])
    assert means.shape == (2, heads[1], -(-tokens // chunk), 5)
    torch.testing.assert_close(means.sum(2) * chunk * heads[0] / heads[1], x.unflatten(1, (heads[1], -1)).sum((2, 3)))
    (gradient,) = torch.autograd.grad(means.sum(), x)
    torch.testing.assert_close(gradient, torch.full_like(x, heads[1] / heads[0] / chunk))


def test_pooled_values_lie_between_the_tokens(form: str, device: str) -> None:
    w, k, v = pooling(30, 7, device=device).leaves
    value = eva_chunk_compress(w, w, k, v, chunk=7, scale=0.4)
    for n, piece in enumerate(v.split(7, dim=2)):
        assert (value[:, :, n] <= piece.amax(2) + 1e-5).all()
        assert (value[:, :, n] >= piece.amin(2) - 1e-5).all()
    pooled = eva_chunk_compress(v * 0, v * 0, k, v, chunk=1, scale=0.4)
    torch.testing.assert_close(pooled, v)
