"""Sums of queries over chunks: in float32, whatever the model's type, and in one order."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from contextlab.attention import Layout, empty_kv
from contextlab.methods.evalm.reader import EVALMState, RollUp

HEADS, WIDTH = 2, 3


def roll_up(read: list[int], lengths: list[int], chunk: int) -> RollUp:
    """Of rows that have read so many tokens, and read on."""
    like = torch.empty(0)
    read_B = torch.tensor(read)
    kv = empty_kv(1, (len(read), HEADS, WIDTH), like)
    state = EVALMState(read_B, torch.empty(len(read), 1), kv, read_B + 1, chunks=kv, query_sum=())
    position_BT = torch.arange(max(lengths)).expand(len(read), -1)
    return RollUp(state, Layout(position_BT), torch.tensor(lengths), chunk)


def expected(q_KTD: Tensor, before_KD: Tensor, opened: int, length: int, chunk: int) -> tuple[list[Tensor], Tensor]:
    """Sums of the chunks that a row completes, and of its open one, one token after the other."""
    done, total = list[Tensor](), before_KD.double()
    for t in range(length):
        total = total + q_KTD[:, t].double()
        if (opened + t + 1) % chunk == 0:
            done.append(total)
            total = torch.zeros_like(total)
    return done, total


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 12)), min_size=1, max_size=3), st.integers(1, 5))
def test_every_token_is_summed_into_its_own_chunk(rows: list[tuple[int, int]], chunk: int) -> None:
    read, lengths = (list(part) for part in zip(*rows, strict=True))
    q = torch.randn(len(rows), HEADS, max(lengths), WIDTH)
    before = torch.randn(len(rows), HEADS, WIDTH) * torch.tensor([n % chunk > 0 for n in read])[:, None, None]
    sums_BKnD, open_BKD = roll_up(read, lengths, chunk).sums(q, before)
    for row, (opened, length) in enumerate(zip(read, lengths, strict=True)):
        done, rest = expected(q[row], before[row], opened % chunk, length, chunk)
        for n, total in enumerate(done):
            torch.testing.assert_close(sums_BKnD[row, :, n].double(), total, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(open_BKD[row].double(), rest, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sums_of_narrow_queries_are_float32(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    q = torch.randn(1, HEADS, 600, WIDTH).to(dtype)
    sums_BKnD, open_BKD = roll_up([0], [600], 256).sums(q, torch.zeros(1, HEADS, WIDTH))
    done, rest = expected(q[0], torch.zeros(HEADS, WIDTH), 0, 600, 256)
    assert sums_BKnD.dtype == open_BKD.dtype == torch.float32
    torch.testing.assert_close(sums_BKnD[0].double(), torch.stack(done, dim=1), atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(open_BKD[0].double(), rest, atol=1e-4, rtol=1e-5)


def test_parts_of_a_chunk_add_up_to_the_whole() -> None:
    q = torch.randn(1, HEADS, 7, WIDTH).bfloat16()
    zeros = torch.zeros(1, HEADS, WIDTH)
    _, first = roll_up([0], [3], 7).sums(q[:, :, :3], zeros)
    parts, _ = roll_up([3], [4], 7).sums(q[:, :, 3:], first)
    whole, _ = roll_up([0], [7], 7).sums(q, zeros)
    torch.testing.assert_close(parts, whole, atol=1e-6, rtol=1e-6)
