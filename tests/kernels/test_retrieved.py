"""Chunks that queries have retrieved: read from wherever a bank keeps them, and joined with the rest of a softmax."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contextlab.kernels import retrieved
from contextlab.kernels.retrieved import Retrieved


def bank(rows: int, heads: int, chunks: int, size: int, width: int, spare: int = 0) -> torch.Tensor:
    """The first slots of a larger piece of memory, cut into chunks."""
    memory = torch.randn(rows, heads, chunks * size + spare, width)
    return memory[:, :, : chunks * size].unflatten(2, (chunks, size))


def test_a_bank_in_whole_chunks_is_not_copied() -> None:
    chunks_first = torch.randn(2, 9, 3, 4, 8).transpose(1, 2)
    assert retrieved.whole_chunks(chunks_first) is chunks_first
    assert retrieved.whole_chunks(chunks_first[:1].expand(2, -1, -1, -1, -1)).stride(0) == 0
    assert retrieved.whole_chunks(chunks_first[..., 1:]).is_contiguous()


@pytest.mark.parametrize("spare", [0, 1, 2, 5])
def test_nor_is_one_with_any_number_of_free_slots_behind_it(spare: int) -> None:
    chunks = bank(2, 3, 9, 4, 8, spare)
    assert retrieved.whole_chunks(chunks) is chunks


@settings(max_examples=50, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 2), st.integers(1, 2), st.integers(1, 5), st.integers(1, 3), st.integers(1, 4)),
    spare=st.integers(0, 3),
    share=st.integers(1, 2),
)
def test_every_chunk_is_found_where_it_lies(shape: tuple[int, int, int, int, int], spare: int, share: int) -> None:
    keys = retrieved.whole_chunks(bank(*shape, spare))
    rows, heads, chunks = shape[:3]
    ids = torch.randint(chunks, (rows, heads * share, 3, 2))
    gathered = retrieved._gather(keys, ids)
    for b in range(rows):
        for h in range(heads * share):
            for t in range(3):
                assert torch.equal(gathered[b, h, t], keys[b, h // share, ids[b, h, t]].flatten(0, 1))


def test_without_a_chunk_the_part_is_zero_and_has_no_weight() -> None:
    q, keys = torch.randn(1, 2, 3, 8), bank(1, 1, 4, 2, 8)
    ids = torch.full((1, 2, 3, 2), 99)
    part = Retrieved(q, keys, keys, ids, torch.zeros_like(ids, dtype=torch.bool), 1.0)
    (span,) = part.spans()
    memory, lse = part.attend(span)
    assert not memory.any()
    assert bool((lse == float("-inf")).all())


@pytest.mark.parametrize("at_once", [1, 40, 2**19])
def test_two_parts_joined_by_their_denominators_are_the_whole(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrieved, "GATHERED_ELEMENTS", at_once)
    q, keys, values = torch.randn(1, 2, 5, 8).double(), bank(1, 2, 6, 2, 8).double(), bank(1, 2, 6, 2, 8).double()
    ids = torch.stack([torch.randperm(6)[:4] for _ in range(10)]).view(1, 2, 5, 4)

    def run(chosen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        part = Retrieved(q, keys, values, chosen, torch.ones_like(chosen, dtype=torch.bool), 0.5)
        pieces = [part.attend(span) for span in part.spans()]
        memory, lse = (torch.cat(x, 2) for x in zip(*pieces, strict=True))
        return memory, lse

    whole, lse = run(ids)
    (first, first_lse), (second, second_lse) = run(ids[..., :1]), run(ids[..., 1:])
    torch.testing.assert_close(torch.logaddexp(first_lse, second_lse), lse)
    joined = torch.lerp(second, first, torch.sigmoid(first_lse - second_lse)[..., None])
    torch.testing.assert_close(joined, whole)
