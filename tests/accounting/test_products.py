from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from law_forms import fits
from torch import Tensor
from torch.nn import functional

from contextlab import backbone as backbones
from contextlab import registry
from contextlab.accounting import products
from contextlab.accounting.flops import count, visible_pairs
from contextlab.accounting.products import ProductCounter
from contextlab.kernels.chunk_topk import chunk_topk

size = st.integers(1, 5)
FAMILIES = ("tiny-llama", "tiny-gpt2")
READING = [(name, family) for name in registry.methods() for family in FAMILIES if fits(name, family)]


def counted(fn: Callable[[], Any]) -> tuple[Any, int]:
    with ProductCounter() as counter:
        result = fn()
    return result, counter.flops


def agree(fn: Callable[[], Any]) -> int:
    """FLOPs of the products, which must equal those of the watch."""
    flops = counted(fn)[1]
    assert flops == count(fn)[1]
    return flops


@settings(deadline=None, max_examples=20)
@given(size, size, size, size)
def test_products_of_every_shape_count_as_under_the_watch(rows: int, m: int, k: int, n: int) -> None:
    a, b, weight_KN = torch.randn(rows, m, k), torch.randn(rows, k, n), torch.randn(k, n)
    for product in (
        lambda: a @ b,
        lambda: a @ weight_KN,
        lambda: torch.bmm(a, b),
        lambda: a.matmul(weight_KN[:, 0]),
        lambda: a[0].mm(weight_KN),
        lambda: torch.mv(a[0], weight_KN[:, 0]),
        lambda: torch.dot(weight_KN[:, 0], weight_KN[:, 0]),
        lambda: torch.addmm(weight_KN.new_zeros(n), a[0], weight_KN),
        lambda: torch.baddbmm(a.new_zeros(rows, m, n), a, b),
        lambda: functional.linear(a, weight_KN.T),
        lambda: functional.linear(a, weight_KN.T, weight_KN.new_zeros(n)),
    ):
        agree(product)


@given(st.permutations([(2, 3, 4), (7, 5, 6), (1, 9, 1), (3, 3, 3)]))
def test_the_largest_product_is_known_in_whatever_order_they_are_computed(shapes: list[tuple[int, int, int]]) -> None:
    with ProductCounter() as counter:
        for m, k, n in shapes:
            torch.ones(m, k) @ torch.ones(k, n)
    assert counter.largest_bytes == max(4 * (m * k + m * n) for m, k, n in shapes)
    assert counter.count == len(shapes)


@pytest.mark.parametrize("needing", ["a", "b", "both", "none"])
def test_backward_passes_count_what_they_compute(needing: str) -> None:
    a = torch.randn(2, 3, 4, requires_grad=needing in ("a", "both"))
    b = torch.randn(5, 4, requires_grad=needing in ("b", "both"))

    def run() -> None:
        out = functional.linear(a, b).relu() @ torch.ones(5, 2)
        if out.requires_grad:
            out.sum().backward()

    agree(run)


def test_a_graph_that_is_never_walked_costs_its_forward_pass() -> None:
    a = torch.randn(3, 3, requires_grad=True)
    assert agree(lambda: a @ a) == 2 * 27


@pytest.mark.parametrize("mask", [None, torch.ones(4, 6).tril(2) > 0, torch.zeros(4, 6).fill_diagonal_(float("-inf"))])
def test_attention_counts_visible_pairs(mask: Tensor | None) -> None:
    q, k, v = torch.randn(1, 2, 4, 8), torch.randn(1, 2, 6, 8), torch.randn(1, 2, 6, 8)
    visible = 24 if mask is None else int((mask if mask.dtype == torch.bool else mask == 0).sum())
    assert (
        agree(lambda: [functional.scaled_dot_product_attention(q, k, v, attn_mask=mask) for _ in range(3)])
        == 3 * 2 * visible * 2 * 16
    )


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad])
def test_layers_that_share_a_mask_count_it_once_in_whatever_parts_they_take_it(
    mode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = list[int]()
    monkeypatch.setattr(products, "visible_pairs", lambda mask: counts.append(visible_pairs(mask)) or counts[-1])
    q, k = torch.randn(1, 2, 2, 8), torch.randn(1, 2, 6, 8)
    with mode(), ProductCounter() as counter:
        for mask in (torch.zeros(4, 6), torch.ones(4, 6).tril(2) > 0):
            for _ in range(3):
                for begin in (0, 2):
                    part = mask[begin : begin + 2]
                    functional.scaled_dot_product_attention(q, k, k, attn_mask=part)
    assert counts == [12, 12, 7, 11]
    assert counter.flops == 3 * 2 * sum(counts) * 2 * 16


def test_a_mask_that_was_changed_in_place_is_counted_again() -> None:
    q, k, mask = torch.randn(1, 2, 4, 8), torch.randn(1, 2, 6, 8), torch.zeros(8, 6)
    with ProductCounter() as counter:
        for visible in (24, 20):
            before = counter.flops
            functional.scaled_dot_product_attention(q, k, k, attn_mask=mask[:4])
            assert counter.flops - before == 2 * visible * 2 * 16
            mask[0, :4] = float("-inf")


def test_a_mask_that_was_counted_is_not_kept() -> None:
    q, k = torch.randn(1, 2, 4, 8), torch.randn(1, 2, 6, 8)
    with torch.no_grad(), ProductCounter():
        mask = torch.zeros(4, 6)
        functional.scaled_dot_product_attention(q, k, k, attn_mask=mask)
        functional.scaled_dot_product_attention(q[:, :, :2], k, k, attn_mask=mask[:2])
        kept = weakref.ref(mask)
        del mask
        assert kept() is None


def test_an_operation_counts_by_its_formula_and_its_parts_do_not() -> None:
    q, mean = torch.randn(1, 2, 30, 8), torch.randn(1, 1, 500, 8)
    assert agree(lambda: chunk_topk(q, mean, torch.tensor([500]), 4)) == 500 * 2 * 30 * 2 * 8


def test_torch_is_what_it_was_afterwards_and_after_an_error() -> None:
    before = {key: vars(key[0]).get(key[1]) for key in products._COUNTS}
    with pytest.raises(ValueError, match="no"), ProductCounter():
        raise ValueError("no")
    counted(lambda: torch.ones(2, 2) @ torch.ones(2, 2))
    assert {key: vars(key[0]).get(key[1]) for key in products._COUNTS} == before


def test_every_thread_counts_its_own_products() -> None:
    before = {key: vars(key[0]).get(key[1]) for key in products._COUNTS}
    barrier = threading.Barrier(4)

    def of_thread(size: int) -> list[int]:
        a, flops = torch.ones(size, size, requires_grad=True), []
        for _ in range(20):
            barrier.wait()
            if size == 1:  # a thread without a counter
                (a @ a).sum().backward()
                continue
            with ProductCounter() as counter:
                torch.matmul(a.mm(a), a).sum().backward()
            flops.append(counter.flops)
        return flops

    with ThreadPoolExecutor(4) as pool:
        flops = list(pool.map(of_thread, range(1, 5)))
    # Two products, and two of each in the backward pass.
    assert flops == [[], *[[6 * 2 * size**3] * 20 for size in range(2, 5)]]
    assert {key: vars(key[0]).get(key[1]) for key in products._COUNTS} == before


def test_of_counters_inside_each_other_the_inner_one_counts() -> None:
    with ProductCounter() as outer:
        with ProductCounter() as inner:
            torch.ones(2, 2) @ torch.ones(2, 2)
        torch.ones(3, 3) @ torch.ones(3, 3)
    assert (inner.flops, outer.flops) == (2 * 8, 2 * 27)


def test_a_thread_that_python_has_not_started_counts_for_the_only_counter(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those in which autograd walks a graph on a GPU."""

    def count() -> tuple[int, int]:
        with ThreadPoolExecutor(1) as pool, ProductCounter() as counter:
            pool.submit(lambda: torch.ones(2, 2) @ torch.ones(2, 2)).result()
            with ProductCounter() as second:
                pool.submit(lambda: torch.ones(2, 2) @ torch.ones(2, 2)).result()
        return counter.flops, second.flops

    assert count() == (0, 0)
    monkeypatch.setattr(products.threading, "enumerate", lambda: [threading.main_thread()])
    assert count() == (2 * 8, 0)


@pytest.mark.parametrize(("name", "family"), READING)
def test_every_method_makes_its_products_where_they_are_seen(name: str, family: str) -> None:
    method = registry.method_class(name)(backbones.load(family, device="cpu"))
    tokens_BT = torch.randint(0, 256, (2, 150))
    state, _ = method.read(method.start(2), tokens_BT)
    first_row = state.index([0])
    agree(lambda: method.read(method.start(2), tokens_BT, torch.tensor([150, 77])))
    agree(lambda: method.read(state, tokens_BT[:, :40], logprobs=False))
    agree(lambda: method.score(state, [[1, 2, 3], [4], [5] * 20]))
    agree(lambda: method.generate(first_row, [[1, 2], [3]], max_new_tokens=3))
