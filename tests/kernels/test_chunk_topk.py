from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses import FakeTensorMode

from contextlab.accounting.flops import FlopCounter
from contextlab.accounting.flops import count as count_flops
from contextlab.errors import UserError
from contextlab.kernels.chunk_topk import blocked, check_index, chunk_topk
from contextlab.kernels.chunk_topk import reference as plain
from contextlab.kernels.dispatch import forced


def slow(q_BHTD: Tensor, mean_BKnD: Tensor, count_B: Tensor, take: Any) -> Any:
    """Sort every query's chunks by decreasing score and increasing id."""
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


def whole_numbers(rows: int, kv_heads: int, groups: Any, queries: Any, chunks: Any, width: int = 3) -> Any:
    """Small integers are exact in every type, and make many ties."""
    q = torch.randint(-1, 2, (rows, kv_heads * groups, queries, width)).float()
    return q, torch.randint(-1, 2, (rows, kv_heads, chunks, width)).float(), torch.randint(0, chunks + 1, (rows,))


@pytest.mark.parametrize("named", ["reference", "torch"])
@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 2), st.integers(1, 2), st.integers(1, 2), st.integers(1, 4), st.integers(0, 90), st.integers(0, 5)
)
def test_equals_a_plain_sort_with_ties_to_the_lower_id(
    named: str, rows: Any, kv_heads: Any, groups: Any, queries: Any, chunks: Any, take: Any
) -> None:
    q, mean, count = whole_numbers(rows, kv_heads, groups, queries, chunks)
    with forced(named):
        ids, score = chunk_topk(q, mean, count, take)
    assert torch.equal(ids, slow(q, mean, count, take))
    assert torch.equal((score > float("-inf")).sum(-1), count.clamp(max=take)[:, None, None].expand(score.shape[:3]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    ("queries", "chunks", "take", "width"),
    [(1, 1, 1, 3), (63, 257, 16, 20), (100, 100, 5, 33), (5, 1200, 7, 16), (2, 3, 9, 4), (3, 40, 4, 300)],
)
def test_ties_and_short_banks_in_every_form(
    form: str, queries: int, chunks: int, take: int, width: int, dtype: torch.dtype, device: str
) -> None:
    q, mean, count = whole_numbers(2, 2, 2, queries, chunks, width)
    mean = mean.transpose(1, 2).contiguous().transpose(1, 2)
    ids, score = chunk_topk(q.to(device, dtype), mean.to(device, dtype), count.to(device), take)
    with forced("reference"):
        expected_ids, expected = chunk_topk(q, mean, count, take)
    assert torch.equal(ids.cpu(), expected_ids)
    assert torch.equal(score.cpu(), expected)


@pytest.mark.parametrize("queries", [1, 70])
@pytest.mark.parametrize(("chunks", "take"), [(127, 2), (128, 2), (150, 2), (192, 2), (511, 2), (512, 2), (1100, 4)])
def test_where_another_way_begins_the_answer_is_the_same(queries: int, chunks: int, take: int, device: str) -> None:
    """With ties and scores of -inf, and with numbers of chunks and queries that change the algorithm."""
    q = torch.ones(1, 2, queries, 1, device=device)
    mean = torch.randint(-3, 2, (1, 1, chunks, 1), device=device).float()
    for least in (-2, 0, 1):
        mean = mean.masked_fill(mean <= least, float("-inf"))
        scores = mean.flatten().cpu().sort(descending=True, stable=True)
        expected = scores.indices.masked_fill(scores.values.isneginf(), 0)[:take]
        for form in ("reference", "torch"):
            with forced(form):
                ids, score = chunk_topk(q, mean, torch.tensor([chunks], device=device), take)
            assert torch.equal(ids.cpu(), expected.expand(ids.shape)), form
            assert torch.equal(score.cpu(), scores.values[:take].expand(ids.shape)), form


@pytest.mark.parametrize(
    "bounds", [{"SCORES": 0}, {"SCORES": 0, "QUERIES": 1, "CHUNKS": 1}, {"SCORES": 64, "STRIP": 2}, {"SCORES": 10**9}]
)
@pytest.mark.parametrize("count", [[90, 90], [90, 40], [0, 3], [0, 0]])
def test_every_way_to_search_has_one_answer(
    bounds: dict[str, int], count: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    q, mean, _ = whole_numbers(2, 2, 3, 5, 90)
    mean[0, :, count[0] :], mean[1, :, count[1] :] = float("nan"), float("nan")
    for name, value in bounds.items():
        monkeypatch.setattr(blocked, name, value)
    for take in (0, 1, 7, 95):
        ids, score = blocked.search(q, mean, torch.tensor(count), take)
        want_ids, want = plain.chunk_topk(q, mean, torch.tensor(count), take)
        assert torch.equal(ids, want_ids)
        assert torch.equal(score, want)


@pytest.mark.parametrize("order", ["random", "rising", "falling", "equal"])
def test_any_order_of_scores_is_searched(form: str, order: str, device: str) -> None:
    scores = {
        "random": torch.randn(300),
        "rising": torch.arange(300.0),
        "falling": -torch.arange(300.0),
        "equal": torch.full((300,), -2.0),
    }[order]
    q, mean = torch.ones(1, 1, 3, 1, device=device), scores[None, None, :, None].to(device)
    ids, score = chunk_topk(q, mean, torch.tensor([300], device=device), 9)
    best = scores.sort(descending=True, stable=True)
    assert torch.equal(ids[0, 0, 2].cpu(), best.indices[:9])
    assert torch.equal(score[0, 0, 2].cpu(), best.values[:9])


@pytest.mark.slow
def test_a_million_chunks_are_searched(form: Any, device: Any) -> None:
    q, mean, _ = (x.to(device) for x in whole_numbers(1, 1, 1, 2, 10**6, width=64))
    mean[:, :, -9] = 3 * q[:, 0, 0]
    count = torch.tensor([10**6 - 5], device=device)
    ids, score = chunk_topk(q, mean, count, 5)
    assert ids[0, 0, 0, 0] == 10**6 - 9
    for result, expected in zip((ids, score), plain.chunk_topk(q, mean, count, 5), strict=True):
        assert torch.equal(result, expected)


def test_scores_fall_and_belong_to_their_ids(form: str, device: str) -> None:
    q, mean = torch.randn(1, 4, 5, 8, device=device), torch.randn(1, 2, 700, 8, device=device)
    ids, score = chunk_topk(q, mean, torch.tensor([650], device=device), 6)
    assert (score.diff(dim=-1) <= 0).all()
    of_head = mean.repeat_interleave(2, dim=1)[0, torch.arange(4)[:, None, None], ids[0]][None]
    torch.testing.assert_close(score, torch.einsum("bhtd,bhtmd->bhtm", q, of_head))
    with forced("reference"):
        torch.testing.assert_close(score, chunk_topk(q, mean, torch.tensor([650], device=device), 6)[1])


def test_positive_and_negative_zero_are_one_score(form: str, device: str) -> None:
    q = torch.tensor([1.0, 0.0], device=device).expand(1, 1, 1, 2)
    mean = torch.tensor([[-0.0, -1.0], [0.0, 1.0], [-0.0, 0.0]], device=device)[None, None]
    ids, _ = chunk_topk(q, mean, torch.tensor([3], device=device), 2)
    assert ids.flatten().tolist() == [0, 1]


def test_scale_of_the_query_changes_no_rank(form: str, device: str) -> None:
    q, mean = torch.randn(2, 2, 5, 8, device=device), torch.randn(2, 2, 30, 8, device=device)
    count = torch.tensor([30, 17], device=device)
    assert torch.equal(chunk_topk(q, mean, count, 4)[0], chunk_topk(q * 8, mean, count, 4)[0])


def test_chunks_beyond_the_count_are_never_retrieved(form: str, device: str) -> None:
    mean = torch.zeros(1, 1, 6, 4, device=device)
    mean[:, :, 3:] = float("nan")
    ids, score = chunk_topk(torch.ones(1, 1, 2, 4, device=device), mean, torch.tensor([3], device=device), 5)
    assert ids.max() < 3
    assert score.isneginf().sum() == 2 * 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="a look at the counts would wait for the GPU")
@pytest.mark.parametrize("wrong", [7, -1, 2**32 + 3, -(2**32) + 3])
def test_counts_of_chunks_that_are_not_there_are_refused(form: str, wrong: int) -> None:
    q, mean = torch.randn(2, 2, 3, 4), torch.randn(2, 1, 6, 4)
    chunk_topk(q, mean, torch.tensor([0, 6]), 2)
    with pytest.raises(ValueError, match=f"count_B has {wrong} in a bank of 6 chunks: give from 0 to 6."):
        chunk_topk(q, mean, torch.tensor([2, wrong]), 2)


@pytest.mark.parametrize(("wrong", "nearest"), [(1032, 1031), (2**32 + 3, 1031), (-1, 0), (-(2**32) + 3, 0)])
def test_where_counts_are_not_looked_at_the_nearest_holds(form: str, wrong: int, nearest: int, device: str) -> None:
    """As on a GPU: no form reads outside of the bank, whose last part is shorter than the others here."""
    q = torch.ones(1, 1, 2, 4, device=device)
    memory = torch.cat((torch.randn(1031, 4), torch.full((500, 4), 9.0)))
    mean = memory[None, None, :1031].to(device)
    search = {"reference": plain.chunk_topk, "torch": blocked.search}.get(form)
    if search is None:
        from contextlab.kernels.chunk_topk.triton import search
    ids, score = search(q, mean, torch.tensor([wrong], device=device), 3)
    expected = search(q, mean, torch.tensor([nearest], device=device), 3)
    assert torch.equal(ids, expected[0])
    assert torch.equal(score, expected[1])
    assert score.max() < 4 * 9


@pytest.mark.parametrize("stored", [[7, 99, 3, 99], [5, 9]])
def test_counts_are_read_with_any_step(form: str, stored: list[int], device: str) -> None:
    count = torch.tensor(stored, device=device)
    count = count[::2] if len(stored) == 4 else count[:1].expand(2)
    q, mean = torch.randn(2, 2, 3, 4, device=device), torch.randn(2, 2, 9, 4, device=device)
    for result, other in zip(chunk_topk(q, mean, count, 6), chunk_topk(q, mean, count.clone(), 6), strict=True):
        assert torch.equal(result, other)


@pytest.mark.parametrize("shape", [(0, 4, 3, 8), (2, 0, 3, 8), (2, 4, 0, 8), (2, 4, 3, 0)])
def test_nothing_in_is_nothing_out(form: str, shape: tuple[int, int, int, int], device: str) -> None:
    mean, count = torch.randn(shape[0], 2, 5, shape[3], device=device), torch.full((shape[0],), 5, device=device)
    ids, score = chunk_topk(torch.randn(shape, device=device), mean, count, 2)
    assert ids.shape == score.shape == (*shape[:3], 2)
    if ids.numel():
        # Without width all scores are 0, and the lower ids come first.
        assert ids[0, 0, 0].tolist() == [0, 1]


def test_blocks_of_queries_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    q, mean, count = torch.randn(2, 4, 37, 8), torch.randn(2, 2, 500, 8), torch.tensor([500, 211])
    whole = blocked.search(q, mean, count, 8)
    monkeypatch.setattr(blocked, "SCORES", 3000)
    monkeypatch.setattr(blocked, "GROUP", 7)
    for result, expected in zip(blocked.search(q, mean, count, 8), whole, strict=True):
        torch.testing.assert_close(result, expected)


def test_the_search_has_no_gradient(form: str, device: str) -> None:
    q = torch.randn(1, 1, 2, 4, device=device, requires_grad=True)
    _, score = chunk_topk(q, torch.randn(1, 1, 5, 4, device=device), torch.tensor([5], device=device), 2)
    assert not score.requires_grad


def test_shapes_are_known_and_it_compiles() -> None:
    q, mean, count = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 9, 8), torch.tensor([9, 4])
    compiled = torch.compile(lambda *x: chunk_topk(*x, 3), fullgraph=True, backend="aot_eager")
    for result, expected in zip(compiled(q, mean, count), chunk_topk(q, mean, count, 3), strict=True):
        assert torch.equal(result, expected)
    with FakeTensorMode():
        ids, _ = chunk_topk(torch.empty(2, 4, 5, 8), torch.empty(2, 2, 9, 8), torch.zeros(2).long(), 3)
        assert (ids.shape, ids.dtype) == ((2, 4, 5, 3), torch.int64)


def test_flops_are_those_of_the_chunks_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONTEXTLAB_KERNELS", "torch")
    q, mean, count = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 9, 8), torch.tensor([9, 4])
    assert count_flops(lambda: chunk_topk(q, mean, count, 3))[1] == (9 + 4) * 4 * 5 * 2 * 8


@pytest.mark.parametrize("counts", [[700, 700], [700, 3], [0, 1]])
@pytest.mark.parametrize("queries", [1, 9])
def test_faiss_retrieves_the_same_chunks(counts: list[int], queries: int) -> None:
    q_BHTD, mean_BKnD, count_B = torch.randn(2, 6, queries, 16), torch.randn(2, 3, 700, 16), torch.tensor(counts)
    ours = chunk_topk(q_BHTD, mean_BKnD, count_B, 5)
    with FlopCounter() as counter:
        theirs = chunk_topk(q_BHTD, mean_BKnD, count_B, 5, index="faiss")
    assert torch.equal(ours[0], theirs[0])
    torch.testing.assert_close(ours[1], theirs[1], atol=1e-5, rtol=1e-5)
    assert counter.flops == 2 * 16 * 6 * queries * sum(counts)


def test_an_index_that_is_not_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    check_index("exact", torch.device("cuda"))
    check_index("faiss", torch.device("cpu"))
    with pytest.raises(UserError, match="searches on a CPU, not on cuda: use index=exact"):
        check_index("faiss", torch.device("cuda"))
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(UserError, match="pip install faiss-cpu, or use index=exact"):
        check_index("faiss", torch.device("cpu"))
