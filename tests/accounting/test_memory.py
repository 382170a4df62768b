from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaConfig, LlamaModel

from contextlab.accounting.flops import FlopCounter
from contextlab.accounting.memory import PeakMemory, resident_bytes, storage_bytes

SQUARE = 10 * 10 * 4


def peak(fn: Callable[[], Any]) -> int:
    with PeakMemory() as memory:
        fn()
    return memory.peak_bytes


def chain(h: Tensor, steps: int) -> Tensor:
    for _ in range(steps):
        h = h @ h
    return h


def freed_before_the_next(h: Tensor) -> None:
    for _ in range(3):
        h @ h


def all_kept(h: Tensor) -> list[Tensor]:
    return [h @ h for _ in range(3)]


def views_and_in_place(h: Tensor) -> Tensor:
    y = torch.zeros(10, 10)
    y.view(100)[3:7].add_(1)
    return y.t().mul_(2).t().reshape(5, 20)


def views_of_what_was_there(h: Tensor) -> Tensor:
    return h.t()[2:].mul_(2).unsqueeze(0).expand(4, 8, 10)


def written_out(h: Tensor) -> Tensor:
    return torch.mm(h, h, out=torch.empty(10, 10))


def written_out_to_what_was_there(h: Tensor) -> Tensor:
    return torch.mm(h.t(), h.t(), out=h)


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (lambda h: chain(h, 1), SQUARE),
        (lambda h: chain(h, 2), 2 * SQUARE),
        (lambda h: chain(h, 50), 2 * SQUARE),
        (lambda h: chain(h, 0), 0),
        (freed_before_the_next, SQUARE),
        (all_kept, 3 * SQUARE),
        (views_and_in_place, SQUARE),
        (views_of_what_was_there, 0),
        (written_out, SQUARE),
        (written_out_to_what_was_there, 0),
        (lambda h: h.split(5), 0),
        (lambda h: torch.cat([h, h]), 2 * SQUARE),
        (lambda h: h.topk(2, dim=0), 2 * 10 * (4 + 8)),
        (lambda h: torch.tensor([1.0, 2.0, 3.0]), 12),
        (lambda h: h.to(torch.float64), 2 * SQUARE),
        (lambda h: h > 0, 100),
        (lambda h: torch.empty(0), 0),
    ],
)
def test_counts_the_bytes_of_live_storages(fn: Callable[[Tensor], Any], expected: int, mode: Any) -> None:
    h = torch.rand(10, 10)
    with mode():
        assert peak(lambda: fn(h)) == expected


def test_what_autograd_saves_stays_live() -> None:
    h = torch.rand(10, 10, requires_grad=True)
    assert peak(lambda: h.exp().exp().sum()) == 2 * SQUARE + 4
    with torch.no_grad():
        assert peak(lambda: h.exp().exp().exp().sum()) == 2 * SQUARE


def test_the_numbers_of_the_call_come_on_top_of_what_is_resident() -> None:
    h = torch.rand(10, 10)
    with PeakMemory("cpu", 1000) as memory:
        assert memory.peak_bytes == 1000
        chain(h, 3)
    assert memory.peak_bytes == 1000 + 2 * SQUARE


def test_nothing_counts_after_the_end_and_what_is_freed_then_does_no_harm() -> None:
    with PeakMemory() as memory:
        kept = torch.zeros(10)
    torch.zeros(1000)
    del kept
    assert memory.peak_bytes == 40


def test_an_exception_passes_and_ends_the_counting() -> None:
    memory = PeakMemory()
    with pytest.raises(RuntimeError), memory:
        torch.zeros(10) @ torch.zeros(11)
    torch.zeros(1000)
    assert memory.peak_bytes == 40 + 44


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 200)), max_size=20))
def test_follows_any_order_of_making_and_freeing(steps: list[tuple[bool, int]]) -> None:
    held: list[Tensor] = []
    live = highest = 0
    with PeakMemory() as memory:
        for make, number in steps:
            if make:
                held.append(torch.zeros(number))
                live += 4 * number
                highest = max(highest, live)
            elif held:
                live -= 4 * held.pop(number % len(held)).numel()
    assert memory.peak_bytes == highest


def test_a_model_takes_the_same_twice_in_every_mode_and_under_the_flop_counter() -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = LlamaModel(LlamaConfig(vocab_size=50, **sizes)).requires_grad_(False)
    tokens = torch.randint(50, (2, 33))
    padding = torch.ones_like(tokens)
    padding[1, 20:] = 0
    peaks = set()
    for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad, torch.no_grad):
        with mode():
            plain = model(tokens, attention_mask=padding).last_hidden_state
            with FlopCounter(), PeakMemory() as memory:
                counted = model(tokens, attention_mask=padding).last_hidden_state
            assert torch.equal(plain, counted)
            peaks |= {memory.peak_bytes, peak(lambda: model(tokens, attention_mask=padding))}
    assert len(peaks) == 1


def test_counting_the_visible_pairs_of_a_mask_takes_no_memory() -> None:
    q, mask = torch.rand(1, 1, 64, 8), torch.zeros(64, 64)
    call = functools.partial(functional.scaled_dot_product_attention, q, q, q, attn_mask=mask)
    with FlopCounter(), PeakMemory() as memory:
        call()
    assert memory.peak_bytes == peak(call)


@torch.library.custom_op("contextlab_test::in_parts", mutates_args=())
def in_parts(a: Tensor) -> Tensor:
    return torch.stack([a, a, a]).sum(0)


@in_parts.register_fake
def _(a: Tensor) -> Tensor:
    return torch.empty_like(a)


in_parts.register_autograd(lambda _, gradient: torch.ops.contextlab_test.in_parts(gradient))


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_operations_written_in_python_are_seen_from_inside(mode: Any) -> None:
    h = torch.rand(10, 10)
    with mode():
        assert peak(lambda: in_parts(h)) == 4 * SQUARE
        assert peak(lambda: in_parts(in_parts(h))) == 5 * SQUARE


def test_what_is_inside_a_backward_pass_counts() -> None:
    h = torch.rand(10, 10, requires_grad=True)
    out = in_parts(h)
    gradient = torch.rand(10, 10)
    assert peak(lambda: torch.autograd.grad(out, h, gradient)) == 4 * SQUARE


def test_shared_storages_count_once() -> None:
    x = torch.rand(10, 10)
    assert storage_bytes([x, x[:2], x.t(), torch.rand(3)]) == SQUARE + 12
    assert storage_bytes([x[:1]]) == SQUARE
    assert storage_bytes([]) == 0


def test_resident_bytes_are_distinct_parameters_and_buffers() -> None:
    first, second = nn.Linear(10, 10, bias=False), nn.Linear(10, 10, bias=False)
    second.weight = first.weight
    second.register_buffer("scale", torch.ones(5, dtype=torch.float64))
    assert resident_bytes(first) == SQUARE
    assert resident_bytes(first, second, nn.Linear(10, 1)) == SQUARE + 40 + 44
