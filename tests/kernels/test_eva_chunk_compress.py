from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contextlab.kernels.eva_chunk_compress import chunk_means, chunk_weights, eva_chunk_compress, pool


def case(rows=2, heads=4, kv_heads=2, length=12, width=8, chunk=4):
    q = torch.randn(rows, heads, length, width, dtype=torch.float64)
    k, v = torch.randn(2, rows, kv_heads, length, width, dtype=torch.float64)
    return q, k, v, torch.randn(rows, kv_heads, -(-length // chunk), width, dtype=torch.float64)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 30), st.integers(1, 9))
def test_by_hand_for_all_lengths(length, chunk):
    """Means are over the chunk size, weights over the tokens that are there."""
    q, k, v, w = case(length=length, chunk=chunk)
    means, weights = chunk_means(q, chunk, 2), chunk_weights(w, k, chunk, 0.4)
    pooled = pool(weights, v)
    for n, begin in enumerate(range(0, length, chunk)):
        piece = slice(begin, begin + chunk)
        expected = q[:, :, piece].unflatten(1, (2, 2)).mean(2).sum(2) / chunk
        torch.testing.assert_close(means[:, :, n], expected)
        logits = (k[:, :, piece] * w[:, :, n, None]).sum(-1) - k[:, :, piece].square().sum(-1) / 2
        expected = ((logits * 0.4).softmax(-1)[..., None] * v[:, :, piece]).sum(2)
        torch.testing.assert_close(pooled[:, :, n], expected)


def test_what_is_missing_of_a_ragged_chunk_weighs_nothing():
    _, k, _, w = case(length=10)
    weights = chunk_weights(w, k, 4, 0.3)
    assert torch.equal(weights[:, :, 2, 2:], torch.zeros(2, 2, 2, dtype=torch.float64))
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, 3, dtype=torch.float64))


def test_without_direction_and_features_pooling_is_the_mean():
    _, k, v, w = case()
    weights = chunk_weights(w * 0, k, 4, 0.3, features=False)
    torch.testing.assert_close(pool(weights, v), chunk_means(v, 4, 2))


def test_chunks_do_not_influence_each_other():
    q, k, v, _ = case()
    changed = k.clone()
    changed[:, :, 4:8] += 1
    before, after = (
        eva_chunk_compress(chunk_means(q, 4, 2), chunk_means(x, 4, 2), x, v, None, 4, 0.3) for x in (k, changed)
    )
    moved = (before - after).abs().amax((0, 1, 3)) > 0
    assert moved.tolist() == [False, True, False]


def test_noise_moves_the_feature():
    q, k, v, noise = case()
    mean_q, mean_k = chunk_means(q, 4, 2), chunk_means(k, 4, 2)
    drawn = eva_chunk_compress(mean_q, mean_k, k, v, noise, 4, 0.3)
    torch.testing.assert_close(drawn, eva_chunk_compress(mean_q + noise, mean_k, k, v, None, 4, 0.3))
    assert not torch.allclose(drawn, eva_chunk_compress(mean_q, mean_k, k, v, None, 4, 0.3))


@pytest.mark.parametrize("length", [8, 7])
def test_gradcheck(length):
    _, k, v, w = case(rows=1, kv_heads=1, length=length, width=2)
    leaves = [x.requires_grad_() for x in (w, chunk_means(k, 4, 1), k, v)]
    assert torch.autograd.gradcheck(lambda w, m, k, v: eva_chunk_compress(w, m, k, v, None, 4, 0.7), leaves)
