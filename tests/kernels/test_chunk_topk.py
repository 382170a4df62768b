from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contextlab.kernels.chunk_topk import chunk_topk


def slow(q_BHTD, mean_BKnD, count_B, take):
    """Sort every query's chunks by (score downwards, id upwards)."""
    rows, heads, queries, _ = q_BHTD.shape
    groups = heads // mean_BKnD.shape[1]
    ids = torch.zeros(rows, heads, queries, take, dtype=torch.int64)
    for b in range(rows):
        for h in range(heads):
            for t in range(queries):
                scores = (mean_BKnD[b, h // groups] @ q_BHTD[b, h, t])[: int(count_B[b])].tolist()
                best = sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:take]
                ids[b, h, t, : len(best)] = torch.tensor(best, dtype=torch.int64)
    return ids


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 2), st.integers(1, 2), st.integers(1, 2), st.integers(1, 4), st.integers(0, 9), st.integers(0, 5))
def test_equals_a_plain_sort_with_ties_to_the_lower_id(rows, kv_heads, groups, queries, chunks, take):
    # Small whole numbers are exact in float32 and make many ties.
    q = torch.randint(-1, 2, (rows, kv_heads * groups, queries, 3)).float()
    mean = torch.randint(-1, 2, (rows, kv_heads, chunks, 3)).float()
    count = torch.randint(0, chunks + 1, (rows,))
    ids, score = chunk_topk(q, mean, count, take)
    assert torch.equal(ids, slow(q, mean, count, take))
    assert torch.equal((score > float("-inf")).sum(-1), count.clamp(max=take)[:, None, None].expand(score.shape[:3]))


def test_scores_fall_and_belong_to_their_ids():
    q, mean = torch.randn(1, 4, 5, 8), torch.randn(1, 2, 20, 8)
    ids, score = chunk_topk(q, mean, torch.tensor([20]), 6)
    assert (score.diff(dim=-1) <= 0).all()
    of_head = mean.repeat_interleave(2, dim=1)
    expected = torch.einsum("bhtd,bhtmd->bhtm", q, of_head[0, torch.arange(4)[:, None, None], ids[0]][None])
    torch.testing.assert_close(score, expected)


def test_scale_of_the_query_changes_no_rank():
    q, mean = torch.randn(2, 2, 5, 8), torch.randn(2, 2, 30, 8)
    count = torch.tensor([30, 17])
    assert torch.equal(chunk_topk(q, mean, count, 4)[0], chunk_topk(q * 8, mean, count, 4)[0])


def test_what_lies_behind_the_count_is_never_found():
    mean = torch.zeros(1, 1, 6, 4)
    mean[:, :, 3:] = 1e9
    ids, _ = chunk_topk(torch.ones(1, 1, 2, 4), mean, torch.tensor([3]), 3)
    assert ids.max() < 3
