"""The local cache as a value that methods hold: what it keeps, lays out, preallocates and refuses."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from contextlab import states
from contextlab.accounting.memory import PeakMemory, storage_bytes
from contextlab.attention import KV, CacheReader, Layout
from contextlab.backbone import Backbone, load
from contextlab.method import AnyMethod, ContextMethod, Lengths
from contextlab.methods.evalm import EVALM, EVALMConfig
from contextlab.methods.full import Full
from contextlab.methods.generative_adapter import GenerativeAdapter, GenerativeAdapterConfig
from contextlab.methods.parts.local_cache import LocalCache, LocalState, reserved
from contextlab.methods.sliding import Sliding, SlidingConfig
from contextlab.methods.window import Window, WindowConfig

HEADS, WIDTH, LAYERS = 1, 4, 2
HOLDERS: dict[str, Any] = {
    "window": lambda b: Window(b, WindowConfig(N=24)),
    "sliding": lambda b: Sliding(b, SlidingConfig(N=24, sinks=2)),
    "evalm": lambda b: EVALM(b, EVALMConfig(W=24, c=4, remote_bias=0.0)),
    "evalm, overlap": lambda b: EVALM(b, EVALMConfig(W=24, c=4, remote_bias=0.0, overlap=True)),
    "generative-adapter": lambda b: GenerativeAdapter(b, GenerativeAdapterConfig(chunk=24)),
}


class NoPositions:
    slopes_H = None

    def rotary(self, positions: Tensor) -> None:
        return None


@pytest.fixture(scope="module")
def llama() -> Backbone:
    return load("tiny-llama")


def text(rows: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 256, (rows, length), generator=torch.Generator().manual_seed(seed))


def numbers(rows: int, count: int, first: int = 0) -> Tensor:
    """Keys that say which token they are."""
    return torch.arange(first, first + count).float()[:, None].expand(rows, HEADS, count, WIDTH)


def state_of(rows: int, count: int, left: int) -> LocalState:
    layers = (numbers(rows, count),) * LAYERS
    kv = KV(layers, layers, torch.full((rows,), count))
    return LocalState(torch.full((rows,), count), torch.zeros(rows, 1), kv, torch.full((rows,), left))


@torch.no_grad()
def read_on(local: LocalCache, state: LocalState, lengths_B: Tensor) -> LocalState:
    """Each row's next tokens, by number, without a model."""
    count = int(lengths_B.max())
    reader = CacheReader(NoPositions(), state.kv, local.layout(state, count))
    steps = torch.arange(count).float()[:, None].expand(len(lengths_B), HEADS, count, WIDTH)
    new = state.length_B[:, None, None, None] + steps
    for _ in range(LAYERS):
        reader.append(new, new)
    after = local.after(state, (reader,), lengths_B, NoPositions())
    return dataclasses.replace(after, length_B=state.length_B + lengths_B)


def in_view(state: LocalState, row: int) -> list[int]:
    return state.kv.k[0][row, 0, : int(state.kv.used_B[row]), 0].int().tolist()


lengths = st.lists(st.lists(st.integers(0, 5), min_size=2, max_size=2), min_size=1, max_size=8)


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 6), st.integers(0, 2), st.integers(0, 7), lengths)
def test_what_stays_is_what_the_value_says(segment: Any, first: Any, last: Any, calls: Any) -> None:
    """Against a list of tokens per row that is cut by hand, whatever the rows read."""
    local = LocalCache(segment, keep_first=first, keep_last=last)
    state = state_of(2, 0, segment)
    views: list[list[int]] = [[], []]
    for call in calls:
        lengths_B = torch.minimum(torch.tensor(call), state.left_B)
        left_B = state.left_B
        state = read_on(local, state, lengths_B)
        for row, count in enumerate(lengths_B.tolist()):
            read = int(state.length_B[row])
            views[row] += range(read - count, read)
            if int(left_B[row]) == count:
                views[row] = views[row][:first] + views[row][max(len(views[row]) - last, first) :]
            assert in_view(state, row) == views[row]
            assert int(state.left_B[row]) == segment - read % segment
        local.check(state)


@given(st.integers(0, 9), st.integers(1, 5), st.integers(0, 3), st.sampled_from([None, 3]))
def test_tokens_are_laid_out_behind_the_slots_in_use(used: Any, count: Any, first: Any, band: Any) -> None:
    layout = LocalCache(99, keep_first=first, band=band).layout(state_of(2, used, 9), count)
    assert layout.position_BT.tolist() == [list(range(used, used + count))] * 2
    assert (layout.band, layout.first, layout.group_T) == (band, first, None)


@pytest.mark.parametrize(("keep_last", "expected"), [(0, [4, 5]), (3, [100, 101])])
def test_learned_positions_run_on_only_where_something_of_a_segment_stays(keep_last: int, expected: list[int]) -> None:
    local = LocalCache(9, keep_last=keep_last)
    state = dataclasses.replace(state_of(1, 4, 5), length_B=torch.tensor([100]))
    assert local.input_positions(state, local.layout(state, 2)).tolist() == [expected]


def test_segments_of_which_nothing_stays_are_skimmed() -> None:
    state = state_of(2, 5, 1)
    skimmed = LocalCache(6).skim(state)
    assert skimmed is not None
    assert (skimmed.kv.slots, skimmed.left_B.tolist()) == (0, [6, 6])
    assert LocalCache(6, keep_first=1).skim(state) is None
    assert LocalCache(6, keep_last=1).skim(state) is None


def test_the_first_boundary_is_placed_for_what_is_ahead(llama: Backbone) -> None:
    local = LocalCache(32)
    assert local.empty(llama, 2, Lengths(50, 21)).left_B.tolist() == [7, 7]
    assert local.empty(llama, 1).left_B.tolist() == [32]


@pytest.mark.parametrize(
    ("changes", "misfit"),
    [
        ({}, None),
        ({"left_B": torch.tensor([0, 3])}, "left_B"),
        ({"left_B": torch.tensor([7, 3])}, "left_B"),
        ({"kv": state_of(2, 11, 3).kv}, "slots of kv"),
        ({"kv": state_of(2, 8, 3).kv, "left_B": torch.tensor([6, 3])}, "left_B"),
    ],
)
def test_a_loaded_cache_holds_no_more_than_a_reading_leaves(
    changes: dict[str, KV | Tensor], misfit: str | None
) -> None:
    local = LocalCache(6, keep_first=1, keep_last=3)
    state = dataclasses.replace(state_of(2, 5, 3), **changes)
    if misfit is None:
        local.check(state)
        local.check(dataclasses.replace(state, left_B=torch.tensor([0, 3])), least_left=torch.tensor([0, 1]))
    else:
        with pytest.raises(states.Misfit, match=misfit):
            local.check(state)


@dataclasses.dataclass(frozen=True)
class Twice(LocalState):
    """The same tokens in two caches."""

    other: KV

    @property
    def caches(self) -> tuple[KV, ...]:
        return self.kv, self.other

    def with_caches(self, *caches: KV) -> Twice:
        kv, other = caches
        return dataclasses.replace(self, kv=kv, other=other)


def test_all_caches_of_a_state_are_cut_preallocated_and_checked_together() -> None:
    local, plain = LocalCache(6, keep_last=2), state_of(1, 4, 2)
    state = Twice(plain.length_B, plain.pending_BC, plain.kv, plain.left_B, other=plain.kv)
    with torch.no_grad():
        ahead = local.reserve(state, torch.tensor([2]))
    assert all(kv.buffers is not None for kv in ahead.caches)
    readers = [CacheReader(NoPositions(), kv, local.layout(state, 2)) for kv in state.caches]
    for reader in readers:
        for _ in range(LAYERS):
            reader.append(numbers(1, 2, 4), numbers(1, 2, 4))
    after = local.after(state, readers, torch.tensor([2]), NoPositions())
    assert [kv.k[0][0, 0, :, 0].tolist() for kv in after.caches] == [[4.0, 5.0]] * 2
    with pytest.raises(states.Misfit, match=r"kv\.used_B"):
        local.check(dataclasses.replace(state, other=state_of(1, 3, 2).kv))


@torch.no_grad()
def test_rows_that_differ_are_not_preallocated() -> None:
    kv = state_of(2, 4, 5).kv
    assert reserved(kv, torch.tensor([3, 2]), torch.tensor([9, 9])) is kv
    uneven = KV(kv.k, kv.v, torch.tensor([4, 3]))
    assert reserved(uneven, torch.tensor([3, 3]), torch.tensor([9, 9])) is uneven
    assert reserved(kv, torch.tensor([3, 3]), torch.tensor([9, 9])).buffers is not None


@pytest.mark.parametrize("name", HOLDERS)
def test_a_call_leaves_no_memory_with_the_state_it_began_with(llama: Backbone, name: str) -> None:
    """An empty state stays empty, and in the middle of a segment a cache does not keep the memory of what it became."""
    method = HOLDERS[name](llama)
    empty = method.start()
    state, _ = method.read(empty, text(1, 5), logprobs=False)
    before = storage_bytes((*state.kv.k, *state.kv.v))
    method.read(state, text(1, 200), logprobs=False)
    assert storage_bytes(empty.tensors().values()) <= empty.nbytes + llama.bos_hidden_C.nbytes
    assert storage_bytes((*state.kv.k, *state.kv.v)) <= before


@pytest.mark.parametrize("name", ["window", "generative-adapter"])
def test_the_caches_of_two_segments_are_never_in_memory_at_once(llama: Backbone, name: str) -> None:
    """A second segment costs what it adds to the state, and not a second cache."""
    method = HOLDERS[name](llama)
    segment = method.local.segment
    peaks, sizes = [], []
    for count in (1, 2):
        with PeakMemory() as memory:
            state, _ = method.read(method.start(), text(1, count * segment), logprobs=False)
        peaks.append(memory.peak_bytes)
        sizes.append(state.nbytes)
    cache = segment * 2 * llama.layers * llama.kv_heads * llama.head_width * 4
    assert peaks[1] - peaks[0] < cache / 2 + 2 * (sizes[1] - sizes[0])


@pytest.mark.parametrize("name", HOLDERS)
def test_continuations_side_by_side_equal_those_of_copies(llama: Backbone, name: str) -> None:
    method: AnyMethod = HOLDERS[name](llama)
    texts = [[3, 5, 7, 9], [], [11], [20, 21, 22, 23, 24], [4, 4]]
    for length in (0, 7, 24, 60):
        state, _ = method.read(method.start(), text(1, length))
        scores, copies = method.score(state, texts), ContextMethod.score(method, state, texts)
        torch.testing.assert_close(scores, copies, atol=1e-5, rtol=1e-5)
        written = method.generate(state, texts, max_new_tokens=5)
        assert written == [ContextMethod.generate(method, state, [prompt], max_new_tokens=5)[0] for prompt in texts]


def test_a_forward_pass_says_where_its_tokens_stand(llama: Backbone) -> None:
    """The layout of candidates reaches the model's own positions as the slots that they would have alone."""
    method, seen = Full(llama), []
    state, _ = method.read(method.start(), text(1, 6))

    def forward(state: LocalState, tokens_BT: Tensor, layout: Layout) -> Any:
        seen.append(method.local.input_positions(state, layout).tolist())
        return method.forward(state, tokens_BT, layout)

    method.local.branches(llama, forward).score(state, [[1, 2], [3, 4], [5]])
    assert seen == [[[6, 7, 6, 7, 6, 7]]]
