"""Caches that grow in place: they stay values, and are never in memory twice."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contextlab.accounting.memory import PeakMemory, storage_bytes
from contextlab.attention import CacheReader, Layout, rotate
from contextlab.attention.cache import KV, SPARE, empty_kv
from contextlab.attention.rotary import per_head
from contextlab.backbone import load
from contextlab.methods.full import Full
from contextlab.methods.sliding import Sliding, SlidingConfig

LAYERS, HEADS, WIDTH = 3, 2, 4
BYTES = LAYERS * 2 * HEADS * WIDTH * 4
"""Of one slot of one row."""
ALIGNED = 4
"""Slots whose keys of a head fill 64 bytes."""


class NoPositions:
    slopes_H = None

    def rotary(self, positions: Any) -> Any:
        return None


def fresh(rows: int = 1) -> Any:
    return empty_kv(LAYERS, (rows, HEADS, WIDTH), torch.empty(0))


def tokens(rows: int, count: int, first: Any) -> Any:
    """Keys that say which token they are; values are their negatives."""
    return torch.arange(first, first + count).float()[:, None].expand(rows, HEADS, count, WIDTH)


@torch.no_grad()
def grow(kv: KV, count: int, first: int, *, reserve: bool = True) -> KV:
    rows = len(kv.used_B)
    kv = kv.reserve(count, 10**6) if reserve else kv
    reader = CacheReader(NoPositions(), kv, Layout(kv.used_B[:, None] + torch.arange(count)))
    new = tokens(rows, count, first)
    for _ in range(LAYERS):
        reader.append(new, -new)
    return reader.grown(torch.full((rows,), count))


def held(kv: KV) -> list[int]:
    """The tokens of a cache, after a look at all of its layers."""
    for k, v in zip(kv.k, kv.v, strict=True):
        assert torch.equal(k, -v)
        assert torch.equal(k, kv.k[0])
        assert torch.equal(k, k[:1, :1, :, :1].expand_as(k))
    return kv.k[0][0, 0, :, 0].int().tolist()


def whole_bytes(kv: KV) -> int:
    return storage_bytes((*kv.k, *kv.v))


def test_a_second_continuation_of_a_cache_never_sees_the_first() -> None:
    shorter = grow(fresh(), 5, 0)
    first, other = grow(shorter, 2, 100), grow(shorter, 3, 200)
    again = grow(first, 1, 300)
    assert held(shorter) == [*range(5)]
    assert held(first) == [*range(5), 100, 101]
    assert held(other) == [*range(5), 200, 201, 202]
    assert held(again) == [*range(5), 100, 101, 300]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 40), st.booleans()), min_size=1, max_size=12))
def test_caches_that_grow_out_of_each_other_in_any_order_stay_what_they_are(steps: Any) -> None:
    """Every step lets some earlier cache grow, in its room or by copying; all of them are looked at in the end."""
    caches, expected = [fresh()], [[]]
    for number, (parent, count, reserve) in enumerate(steps, start=1):
        parent = parent % len(caches)
        caches.append(grow(caches[parent], count, 1000 * number, reserve=reserve))
        expected.append([*expected[parent], *range(1000 * number, 1000 * number + count)])
    assert [held(kv) for kv in caches] == expected


def test_growing_token_by_token_writes_in_place_and_keeps_few_free_slots() -> None:
    kv = grow(fresh(), 512, 0)
    moves = 0
    for step in range(300):
        before = kv.k[0].data_ptr()
        kv = grow(kv, 1, 1000 + step)
        moves += kv.k[0].data_ptr() != before
        assert whole_bytes(kv) <= (kv.slots + kv.slots // SPARE + ALIGNED) * BYTES
    assert moves <= 300 // (512 // SPARE) + 1
    assert held(kv) == [*range(512), *range(1000, 1300)]


def test_moving_into_larger_memory_never_holds_the_cache_twice() -> None:
    """Even while the caller holds the cache that is moved: its peak is the larger one and one tensor of the old."""
    with PeakMemory() as memory:
        kv = KV(*grow(fresh(), 640, 0, reserve=False).__getstate__().values())
        memory.peak_bytes = 0
        grown = grow(kv, 1, 1000)
    slots = 641 + 641 // SPARE + ALIGNED
    assert memory.peak_bytes <= slots * BYTES + 640 * BYTES // (2 * LAYERS) + 4096
    assert held(kv) == [*range(640)]
    assert held(grown) == [*range(640), 1000]


def test_nor_when_the_larger_memory_takes_the_place_of_one_that_is_full() -> None:
    with PeakMemory() as memory:
        kv = grow(fresh(), 640, 0)
        assert kv.buffers is not None
        before = kv.buffers.slots
        kv = grow(kv, before - 640, 640)
        memory.peak_bytes = 0
        grown = grow(kv, 1, 1000)
    assert grown.buffers is not None
    peak_slots = grown.buffers.slots + before / (2 * LAYERS)
    assert before < grown.buffers.slots
    assert memory.peak_bytes <= peak_slots * BYTES + 4096
    assert held(kv) == [*range(before)]


@torch.no_grad()
def test_a_cache_is_never_reserved_beyond_what_it_may_hold() -> None:
    kv = fresh().reserve(1000, 128)
    assert kv.buffers is not None
    assert kv.buffers.slots == 128
    assert kv.reserve(1000, 128).buffers is kv.buffers


@torch.no_grad()
def test_an_empty_cache_stays_empty_when_another_grows_out_of_it() -> None:
    empty = fresh()
    assert empty.reserve(8, 100).buffers is not None
    assert empty.buffers is None


@pytest.mark.parametrize(
    ("held_slots", "new", "cut", "moves"), [(5, 6, True, False), (5, 5, True, True), (5, 6, False, True)]
)
@torch.no_grad()
def test_a_cache_that_is_soon_cut_does_not_leave_its_memory_with_who_began_it(
    held_slots: int, new: int, cut: bool, moves: bool
) -> None:
    """Unless moving is what saves memory: where the cache is the larger part of what it becomes."""
    shorter = grow(fresh(), held_slots, 0, reserve=False)
    larger = shorter.reserve(new, 100, cut=cut)
    assert larger.buffers is not None
    assert (shorter.buffers is larger.buffers) == moves
    assert held(shorter) == held(larger) == [*range(held_slots)]


@torch.no_grad()
def test_nothing_moves_where_nothing_is_added() -> None:
    shorter = grow(fresh(), 5, 0, reserve=False)
    for kv in (shorter.reserve(0, 100), shorter.reserve(7, 5)):
        assert kv is shorter
        assert kv.buffers is None


def test_copies_and_pickles_hold_the_slots_in_use_only() -> None:
    kv = grow(grow(fresh(), 100, 0), 1, 100)
    assert whole_bytes(kv) > 101 * BYTES
    for other in (copy.deepcopy(kv), pickle.loads(pickle.dumps(kv))):
        assert whole_bytes(other) == 101 * BYTES
        assert held(grow(other, 1, 500)) == [*range(101), 500]
    assert held(grow(kv, 1, 600)) == [*range(101), 600]


@pytest.mark.parametrize("count", [1, 10, 100, 1001])
def test_what_is_read_at_once_holds_no_free_slots(count: int) -> None:
    assert whole_bytes(grow(fresh(), count, 0)) < (count + ALIGNED) * BYTES


@pytest.mark.parametrize("width", [4, 8, 20, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_heads_begin_at_aligned_memory(width: int, dtype: torch.dtype) -> None:
    with torch.no_grad():
        kv = empty_kv(1, (2, 3, width), torch.empty(0, dtype=dtype)).reserve(37, 100)
    for row in range(2):
        for head in range(3):
            assert kv.k[0][row, head].data_ptr() % 64 == 0


def test_a_cache_cut_to_nothing_keeps_no_memory() -> None:
    assert whole_bytes(grow(fresh(), 10, 0).cut(0, torch.tensor([True]))) == 0


def test_with_a_graph_nothing_is_written_in_place() -> None:
    """A buffer that attention has saved for its backward pass must not change."""
    kv = grow(fresh(), 4, 0)
    weight = torch.ones((), requires_grad=True)
    reader = CacheReader(NoPositions(), kv, Layout(kv.used_B[:, None] + torch.arange(2)))
    k_BKSD, _ = reader.append(tokens(1, 2, 10) * weight, tokens(1, 2, 10) * weight)
    loss = (k_BKSD**2).sum()
    grow(kv, 3, 50)
    loss.backward()
    assert weight.grad is not None
    assert kv.buffers is not None
    assert kv.buffers.free(7, 1) is False


def test_a_cache_with_a_graph_keeps_it_when_it_is_read_on_from_without() -> None:
    leaf = torch.ones(1, HEADS, 2, WIDTH, requires_grad=True)
    layers = (leaf * 2,) * LAYERS
    kv = KV(layers, layers, torch.tensor([2]))
    grow(kv, 3, 5)
    kv.k[0].sum().backward()
    assert leaf.grad is not None


def test_what_was_read_for_inference_only_goes_on_outside_of_it() -> None:
    with torch.inference_mode():
        kv = grow(fresh(), 4, 0)
    assert held(grow(kv, 2, 10)) == [*range(4), 10, 11]


def test_two_passes_over_the_same_free_slots_are_found_out() -> None:
    with torch.no_grad():
        kv = grow(fresh(), 4, 0).reserve(8, 100)
        readers = [CacheReader(NoPositions(), kv, Layout(kv.used_B[:, None])) for _ in range(2)]
        for reader in readers:
            for _ in range(LAYERS):
                reader.append(tokens(1, 1, 9), -tokens(1, 1, 9))
    readers[0].grown(torch.tensor([1]))
    with pytest.raises(AssertionError, match="same slots"):
        readers[1].grown(torch.tensor([1]))


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-qwen2"])
@pytest.mark.parametrize("raw", [frozenset(), frozenset({0}), frozenset({0, 1})])
def test_keys_move_to_the_rotation_of_their_new_slots(name: str, raw: Any) -> None:
    backbone = load(name)
    key = torch.randn(2, backbone.kv_heads, 9, backbone.head_width)
    turned = rotate(key, per_head(backbone, torch.arange(9)[None]))
    layers = tuple(key if layer in raw else turned for layer in range(2))
    kept = KV(layers, layers, torch.tensor([9, 7]), raw).keep(2, 3, torch.tensor([True, False]), backbone)
    chosen = [0, 1, 6, 7, 8]
    again = rotate(key[:, :, chosen], per_head(backbone, torch.arange(5)[None]))
    for layer in range(2):
        expected = key[0, :, chosen] if layer in raw else again[0]
        torch.testing.assert_close(kept.k[layer][0, :, :5], expected, atol=2e-6, rtol=1e-5)
        assert torch.equal(kept.k[layer][1], layers[layer][1, :, :7])
        assert torch.equal(kept.v[layer][0, :, :5], layers[layer][0, :, chosen])


def test_narrow_keys_are_rounded_once_by_a_move() -> None:
    backbone = load("tiny-llama")
    exact = torch.randn(1, 2, 40, 8)
    turned = rotate(exact, per_head(backbone, torch.arange(40)[None])).bfloat16()
    kept = KV((turned,), (turned,), torch.tensor([40])).keep(0, 3, torch.tensor([True]), backbone).k[0]
    expected = rotate(exact[:, :, 37:], per_head(backbone, torch.arange(3)[None]))
    assert kept.dtype == torch.bfloat16
    assert float((kept - expected).abs().max()) <= 2 * 2**-9 * float(expected.norm(dim=-1).max())


@pytest.mark.parametrize("split", [1, 7, 64])
def test_full_is_bitwise_the_same_in_place_and_copied(split: int) -> None:
    """Free slots change where things lie, and not one bit of what is computed."""
    backbone, text = load("tiny-llama"), torch.randint(0, 256, (2, 120), generator=torch.Generator().manual_seed(0))
    method = Full(backbone)
    roomy, _ = method.read(method.start(2), text[:, :split])
    bare = roomy.map(torch.clone)
    for begin in (*range(split, 100, 9), 100):
        roomy, logprobs = method.read(roomy, text[:, begin : begin + 9])
        bare, expected = method.read(bare, text[:, begin : begin + 9])
        assert logprobs is not None
        assert expected is not None
        assert torch.equal(logprobs, expected)
        bare = bare.map(torch.clone)


def test_a_step_of_a_long_state_needs_little_more_than_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = load("tiny-llama")
    monkeypatch.setattr(backbone, "max_positions", 4096)
    method = Full(backbone)
    state, _ = method.read(method.start(), torch.randint(0, 256, (1, 2048)), logprobs=False)
    with PeakMemory() as memory:
        state = state.map(torch.clone)
        for _ in range(3):
            memory.peak_bytes = 0
            state, _ = method.read(state, torch.tensor([[7]]), logprobs=False)
            assert memory.peak_bytes <= 1.3 * state.nbytes


def test_sliding_keeps_rotated_keys_through_many_windows() -> None:
    backbone = load("tiny-llama")
    method = Sliding(backbone, SlidingConfig(N=16, sinks=2))
    text = torch.randint(0, 256, (1, 400), generator=torch.Generator().manual_seed(1))
    whole, _ = method.read(method.start(), text)
    parted = method.start()
    for piece in text.split(7, dim=1):
        parted, _ = method.read(parted, piece)
    for keys, other in zip(whole.kv.k, parted.kv.k, strict=True):
        torch.testing.assert_close(keys, other, atol=1e-4, rtol=1e-4)
