"""Attention without a mask: where it is used, and that it is attention with the mask that it stands for."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from contextlab.accounting.flops import FlopCounter
from contextlab.accounting.products import ProductCounter
from contextlab.attention import CacheReader, Layout, empty_kv, sdpa
from contextlab.attention import reader as readers
from contextlab.attention.cache import KV
from contextlab.kernels.visible import SeenBlock

HEADS, WIDTH = 2, 4


class Positions:
    """Of a model without rotary encoding."""

    slopes_H: Tensor | None = None

    def rotary(self, positions: Tensor) -> None:
        return None


def reader(used: list[int], length: int, *, slopes: bool = False, **layout: object) -> CacheReader:
    """Over a cache of random keys; rows use so many slots of it."""
    shape = (len(used), HEADS, max(used), WIDTH)
    kv = KV((torch.randn(shape),), (torch.randn(shape),), torch.tensor(used))
    positions = Positions()
    if slopes:
        positions.slopes_H = torch.ones(HEADS)
    return CacheReader(positions, kv, Layout(kv.used_B[:, None] + torch.arange(length), **layout))  # type: ignore[arg-type]


def written_out(queries: int, keys: int) -> Tensor:
    """The mask of queries that are the last of the keys."""
    hidden_TS = ~torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
    return torch.zeros(1, 1, queries, keys).masked_fill(hidden_TS, float("-inf"))


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 300), st.integers(0, 300))
def test_no_mask_means_that_the_queries_are_the_last_of_the_keys(
    heads: int, groups: int, queries: int, older: int
) -> None:
    keys = queries + older
    q = torch.randn(2, heads * groups, queries, WIDTH)
    k, v = (torch.randn(2, heads, keys, WIDTH) for _ in range(2))
    with FlopCounter() as without:
        out = sdpa(q, k, v, None, 0.5)
    with FlopCounter() as masked:
        expected = sdpa(q, k, v, written_out(queries, keys), 0.5)
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)
    assert without.flops == masked.flops


def test_gradients_without_a_mask_are_those_with_it() -> None:
    q, k, v = (torch.randn(1, 2, length, WIDTH, requires_grad=True) for length in (5, 9, 9))
    gradients = [
        torch.autograd.grad(sdpa(q, k, v, mask, 0.5).square().sum(), (q, k, v)) for mask in (None, written_out(5, 9))
    ]
    for without, masked in zip(*gradients, strict=True):
        torch.testing.assert_close(without, masked)


CAUSAL: dict[str, tuple[Callable[[], CacheReader], int | None, bool]] = {
    "a cold block": (lambda: reader([0, 0], 4), None, True),
    "a block after a full cache": (lambda: reader([5, 5], 4), None, True),
    "one token": (lambda: reader([5], 1), None, True),
    "a window as wide as the keys": (lambda: reader([5], 4), 9, True),
    "a narrow window of the model": (lambda: reader([5], 4), 8, False),
    "rows of different lengths": (lambda: reader([5, 3], 4), None, False),
    "a band": (lambda: reader([5], 4, band=20), None, False),
    "candidates": (lambda: reader([5], 4, group_T=torch.tensor([0, 0, 1, 1])), None, False),
    "slopes": (lambda: reader([5], 4, slopes=True), None, False),
}


@pytest.mark.parametrize("name", CAUSAL)
def test_what_is_causal_has_the_mask_that_no_mask_stands_for(name: str) -> None:
    make, window, expected = CAUSAL[name]
    attention = make()
    assert attention.causal(window) == expected
    queries, keys = attention.layout.position_BT.shape[1], attention.key_position_BS.shape[1]
    mask = attention.mask(window, torch.float32)
    rows = len(attention.layout.position_BT)
    same = mask.shape[-2:] == (queries, keys) and torch.equal(
        mask.expand(rows, -1, -1, -1), written_out(queries, keys).expand(rows, mask.shape[1], -1, -1)
    )
    assert same or not expected


def test_a_gpu_is_given_no_mask_where_all_is_causal(monkeypatch: pytest.MonkeyPatch) -> None:
    masks: list[Tensor | None] = []
    monkeypatch.setattr(readers, "sdpa", lambda q, k, v, mask, scale: masks.append(mask) or q)
    for device, length in (("meta", 4), ("cpu", 4), ("cpu", 1)):
        kv = empty_kv(1, (1, HEADS, WIDTH), torch.empty(0, device=device))
        old, new, first = (torch.empty(1, HEADS, n, WIDTH, device=device) for n in (5, length, 5))
        kv = KV((old,), (first,), torch.tensor([5]))
        position_BT = 5 + torch.arange(length, device=device)[None]
        CacheReader(Positions(), kv, Layout(position_BT))(0, new, new, new, 0.5)
    assert [mask is None for mask in masks] == [True, False, True]


def test_queries_after_a_cache_attend_alike_while_products_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's bias for them knows attention by its name in torch, where the counter has put its own function."""
    monkeypatch.setattr(readers, "blocks", lambda mask: [SeenBlock(slice(None), slice(None), mask)])
    q, k = torch.randn(1, HEADS, 5, WIDTH), torch.randn(1, HEADS, 9, WIDTH)
    alone = sdpa(q, k, k, None, 0.5)
    with ProductCounter() as counter:
        counted = sdpa(q, k, k, None, 0.5)
    seen = torch.ones(5, 9).tril(4).bool()
    torch.testing.assert_close(alone, sdpa(q, k, k, seen, 0.5))
    assert torch.equal(alone, counted)
    assert counter.flops == HEADS * (5 + 6 + 7 + 8 + 9) * 4 * WIDTH
