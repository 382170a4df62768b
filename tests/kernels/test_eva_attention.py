from __future__ import annotations

import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses import FakeTensorMode

from contextlab.accounting.flops import count
from contextlab.kernels.eva_attention import _forward, eva_attention
from contextlab.kernels.eva_attention.blocked import QUERIES_AT_ONCE
from contextlab.kernels.eva_attention.blocked import eva_attention as blocked
from contextlab.kernels.eva_attention.reference import eva_attention as reference


def case(rows=2, heads=4, kv_heads=2, queries=5, keys=9, chunks=3, width=8, dtype=torch.float64, causal=False):
    q = torch.randn(rows, heads, queries, width, dtype=dtype)
    k, v = torch.randn(2, rows, kv_heads, keys, width, dtype=dtype)
    chunk_k, chunk_v = torch.randn(2, rows, kv_heads, chunks, width, dtype=dtype)
    if causal:
        return q, k, v, chunk_k, chunk_v, None, None, None, 0.3
    bias = torch.randn(rows, 1, queries, keys, dtype=dtype)
    hidden = torch.rand_like(bias) > 0.6
    hidden[..., 0] = False
    counts = torch.randint(0, chunks + 1, (rows, queries))
    heed = torch.randn(heads, dtype=dtype)
    heed[0] = float("-inf")
    return q, k, v, chunk_k, chunk_v, bias.masked_fill(hidden, float("-inf")), counts, heed, 0.3


def by_loops(q, k, v, chunk_k, chunk_v, bias, counts, heed, scale):
    out = torch.zeros_like(q)
    rows, heads, queries, _ = q.shape
    older, groups = k.shape[2] - queries, heads // k.shape[1]
    for b in range(rows):
        for h in range(heads):
            for t in range(queries):
                keys = k.shape[2] if bias is not None else older + t + 1
                seen = chunk_k.shape[2] if counts is None else int(counts[b, t])
                local = k[b, h // groups, :keys] @ q[b, h, t] * scale
                local = local if bias is None else local + bias[b, 0, t]
                remote = chunk_k[b, h // groups, :seen] @ q[b, h, t] * scale
                remote = remote if heed is None else remote + heed[h]
                weights = torch.cat((local, remote)).softmax(0)
                out[b, h, t] = weights @ torch.cat((v[b, h // groups, :keys], chunk_v[b, h // groups, :seen]))
    return out


@pytest.mark.parametrize("causal", [True, False])
def test_the_reference_is_one_softmax_over_what_is_seen(causal):
    given = case(causal=causal)
    torch.testing.assert_close(reference(*given), by_loops(*given))


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 9), st.integers(0, 6), st.integers(0, 5), st.booleans(), st.integers(0, 99))
def test_all_forms_agree(queries, older, chunks, causal, seed):
    torch.manual_seed(seed)
    given = case(queries=queries, keys=queries + older, chunks=chunks, causal=causal)
    expected = reference(*given)
    torch.testing.assert_close(eva_attention(*given), expected)
    with torch.enable_grad():
        torch.testing.assert_close(blocked(*given), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_narrower_types_stay_close(dtype):
    given = case(queries=70, keys=100, chunks=20)
    narrow = [x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in given]
    expected = reference(*given)
    found = eva_attention(*narrow)
    assert found.dtype == dtype
    tolerance = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}[dtype]
    assert (found.double() - expected).norm() < tolerance * expected.norm()


@pytest.mark.parametrize("causal", [True, False])
def test_gradients_equal_the_references_over_several_tiles(causal, monkeypatch):
    monkeypatch.setattr(sys.modules[blocked.__module__], "QUERIES_AT_ONCE", 4)
    given = case(queries=11, keys=15, causal=causal)
    found = []
    for form in (eva_attention, reference):
        leaves = [
            x.clone().requires_grad_() if isinstance(x, torch.Tensor) and i != 6 else x for i, x in enumerate(given)
        ]
        form(*leaves).square().sum().backward()
        found.append([x.grad for x in leaves if isinstance(x, torch.Tensor) and x.requires_grad])
    assert len(found[0]) == (5 if causal else 7)
    for ours, expected in zip(*found, strict=True):
        assert ours.isfinite().all()
        torch.testing.assert_close(ours, expected)


def test_heads_that_heed_no_chunk_are_local_attention():
    q, k, v, chunk_k, chunk_v, bias, counts, _, scale = case()
    shut = torch.full((4,), float("-inf"), dtype=torch.float64)
    out = eva_attention(q, k, v, chunk_k, chunk_v, bias, counts, shut, scale)
    torch.testing.assert_close(
        out, eva_attention(q, k, v, chunk_k[:, :, :0], chunk_v[:, :, :0], bias, None, None, scale)
    )


def test_a_query_without_chunks_beside_others_with_chunks():
    given = list(case(causal=True))
    given[6] = torch.tensor([[0, 0, 3, 3, 3], [0, 1, 1, 2, 3]])
    out = eva_attention(*given)
    assert out.isfinite().all()
    torch.testing.assert_close(out, by_loops(*given))


def test_flops_count_what_is_visible():
    q, k, v, chunk_k, chunk_v, bias, counts, heed, scale = case(causal=False)
    visible = int((bias > float("-inf")).sum()) * 4 + int(counts.sum()) * 4
    assert count(lambda: eva_attention(q, k, v, chunk_k, chunk_v, bias, counts, heed, scale))[1] == visible * 4 * 8
    causal = 2 * 4 * (5 * 4 + 15) + 2 * 4 * 5 * 3
    assert count(lambda: eva_attention(q, k, v, chunk_k, chunk_v, None, None, heed, scale))[1] == causal * 4 * 8


def test_no_score_matrix_of_all_heads_is_ever_held():
    """The largest tensor of a forward and backward pass is a tile's, whatever the number of queries."""
    largest = 0

    class Largest(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            largest = max([largest, *(x.numel() for x in torch.utils._pytree.tree_leaves(out) if hasattr(x, "numel"))])
            return out

    given = list(case(rows=1, heads=2, kv_heads=1, queries=1024, keys=1024, chunks=1024, width=2, causal=True))
    given[0].requires_grad_()
    with Largest():
        eva_attention(*given).sum().backward()
    assert largest <= 2 * QUERIES_AT_ONCE * 1024


def test_shapes_are_known_without_data():
    with FakeTensorMode():
        given = case(causal=True)
        assert eva_attention(*given).shape == given[0].shape


@pytest.mark.parametrize("causal", [True, False])
def test_the_operation_follows_torchs_rules(causal):
    torch.library.opcheck(_forward, case(causal=causal), test_utils=("test_schema", "test_faketensor"))
