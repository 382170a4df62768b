"""The reading loop, on a method whose hidden state is the sum of what it read."""

from __future__ import annotations

import dataclasses
import itertools
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from contextlab.method import Capabilities, ContextMethod, Lengths, State
from contextlab.methods.parts import blocks
from contextlab.methods.parts.blocks import BlockMethod

BACKBONE: Any = SimpleNamespace(
    vocab_size=100, exclusive=nullcontext, logprobs=lambda before, tokens: -(1000 * before[..., 0] + tokens).float()
)


@dataclasses.dataclass(frozen=True)
class SumState(State):
    """What was read in all, and how far each row may read in one step."""

    sum_B: Tensor
    left_B: Tensor


class Sum(BlockMethod):
    """Reads segments of a length of its own for every row."""

    def __init__(self, segment: list[int], *, skims: bool = False) -> None:
        super().__init__(BACKBONE)
        self.segment_B = torch.tensor(segment)
        self.skims, self.steps, self.skimmed = skims, 0, 0
        self.reserved: list[list[int]] = []
        self.longest: list[int] = []
        self.branches: Any = None

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities()

    def start(self, batch_size: int = 1, *, ahead: Lengths | None = None) -> SumState:
        zeros_B = torch.zeros(batch_size, dtype=torch.int64)
        return SumState(zeros_B, torch.zeros(batch_size, 1), zeros_B.float(), self.segment_B[:batch_size])

    def room(self, state: SumState) -> Tensor:
        return state.left_B

    def step(self, state: SumState, tokens_Bt: Tensor, lengths_B: Tensor) -> tuple[SumState, Tensor]:
        assert bool((lengths_B <= state.left_B).all())
        assert tokens_Bt.shape[1] == int(lengths_B.max())
        self.steps += 1
        real_Bt = _real(tokens_Bt, lengths_B)
        hidden_Bt = state.sum_B[:, None] + (tokens_Bt * real_Bt).cumsum(1)
        # What a row's padding holds must not matter.
        return self._read(state, hidden_Bt[:, -1], lengths_B), hidden_Bt.masked_fill(~real_Bt, 9e9)[..., None]

    def skim(self, state: SumState, tokens_Bt: Tensor, lengths_B: Tensor) -> SumState | None:
        if not self.skims:
            return None
        assert torch.equal(lengths_B, state.left_B)
        self.skimmed += 1
        return self._read(state, state.sum_B + (tokens_Bt * _real(tokens_Bt, lengths_B)).sum(1), lengths_B)

    def reserve(self, state: SumState, lengths_B: Tensor) -> SumState:
        self.reserved.append(lengths_B.tolist())
        return state

    def continuations(self, state: SumState, longest: int) -> Any:
        self.longest.append(longest)
        return self.branches

    def _read(self, state: SumState, sum_B: Tensor, lengths_B: Tensor) -> SumState:
        left_B = state.left_B - lengths_B
        left_B = torch.where(left_B == 0, self.segment_B[: len(left_B)], left_B)
        return dataclasses.replace(state, sum_B=sum_B, left_B=left_B)


def _real(tokens_Bt: Tensor, lengths_B: Tensor) -> Tensor:
    return torch.arange(tokens_Bt.shape[1]) < lengths_B[:, None]


def expected(tokens: list[int]) -> list[float]:
    return [-(1000 * sum(tokens[:t]) + token) for t, token in enumerate(tokens)]


rows = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 17)), min_size=1, max_size=4)


@given(rows, st.integers(1, 6), st.integers(0, 99))
def test_every_token_is_scored_from_all_before_it_whatever_the_blocks(shape: Any, most: Any, seed: Any) -> None:
    segment, lengths = ([sizes[i] for sizes in shape] for i in range(2))
    tokens_BT = torch.randint(1, 9, (len(shape), 17), generator=torch.Generator().manual_seed(seed))
    method = Sum(segment)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_TOKENS", most)
        state, logprobs_BT = method.read(method.start(len(shape)), tokens_BT, torch.tensor(lengths))
    assert logprobs_BT is not None
    for row, length in enumerate(lengths):
        text = tokens_BT[row, :length].tolist()
        assert logprobs_BT[row].tolist() == expected(text) + [0.0] * (17 - length)
        assert state.pending_BC[row].tolist() == [sum(text)]
    assert state.length_B.tolist() == lengths
    assert len(method.reserved) == method.steps
    assert method.reserved[:1] == [lengths][: method.steps]
    for before, after in itertools.pairwise(method.reserved):
        assert all(b >= a for b, a in zip(before, after, strict=True))
        assert before != after


@given(rows, st.integers(0, 17))
def test_reading_in_two_calls_is_reading_in_one(shape: Any, split: Any) -> None:
    segment, lengths = ([sizes[i] for sizes in shape] for i in range(2))
    tokens_BT, length_B = torch.arange(17).repeat(len(shape), 1), torch.tensor(lengths)
    method = Sum(segment)
    whole, _ = method.read(method.start(len(shape)), tokens_BT, length_B)
    first, _ = method.read(method.start(len(shape)), tokens_BT, length_B.clamp(max=split))
    both, _ = method.read(first, tokens_BT[:, split:], (length_B - split).clamp(min=0))
    for name, tensor in whole.tensors().items():
        assert torch.equal(both.tensors()[name], tensor), name


def test_blocks_that_nobody_asks_about_are_skimmed() -> None:
    tokens_BT = torch.arange(20).repeat(2, 1)
    method, thorough = Sum([4, 4], skims=True), Sum([4, 4])
    state, logprobs = method.read(method.start(2), tokens_BT, logprobs=False)
    assert logprobs is None
    assert (method.skimmed, method.steps) == (4, 1)
    expected_state, _ = thorough.read(thorough.start(2), tokens_BT, logprobs=False)
    assert (thorough.skimmed, thorough.steps) == (0, 5)
    for name, tensor in expected_state.tensors().items():
        assert torch.equal(state.tensors()[name], tensor), name


@pytest.mark.parametrize(
    ("segments", "lengths", "skimmed"),
    [
        ([4, 4], [20, 7], 1),  # the second row ends in its second block
        ([4, 4], [4, 20], 0),  # the first row's prediction comes from its first block
        ([3, 4], [20, 20], 4),  # blocks of different lengths go together, until the second row comes to its last
    ],
)
def test_a_block_is_skimmed_only_when_every_row_fills_it_and_goes_on(
    segments: list[int], lengths: list[int], skimmed: int
) -> None:
    method = Sum(segments, skims=True)
    state, _ = method.read(method.start(2), torch.ones(2, 20, dtype=torch.int64), torch.tensor(lengths), logprobs=False)
    assert method.skimmed == skimmed
    assert state.pending_BC[:, 0].tolist() == lengths


def test_what_is_scored_is_never_skimmed() -> None:
    method = Sum([4], skims=True)
    method.read(method.start(), torch.arange(20)[None])
    assert (method.skimmed, method.steps) == (0, 5)


def test_nothing_is_read_in_no_step() -> None:
    method = Sum([4])
    state, logprobs = method.read(method.start(), torch.zeros(1, 0, dtype=torch.int64))
    assert method.steps == 0
    assert logprobs is not None
    assert logprobs.shape == (1, 0)
    assert state.length_B.tolist() == [0]


class Together:
    """Returns what shows that it was called."""

    def score(self, state: SumState, candidates: list[list[int]]) -> Tensor:
        return torch.full((1, len(candidates), 1), 7.0)

    def generate(self, state: SumState, prompts: list[list[int]], writer: Any) -> list[list[int]]:
        return [[writer.max_new_tokens]] * len(prompts)


@pytest.mark.parametrize(("length", "together"), [(1, True), (4, True), (5, False)])
def test_candidates_go_side_by_side_up_to_where_the_state_changes(length: int, together: bool) -> None:
    method = Sum([9, 4, 9, 4])
    method.branches = Together()
    scores = method.score(method.start(2), [[1], [1] * length])
    assert (float(scores[0, 0, 0]) == 7.0) == together
    assert method.longest == ([length] if together else [])


@pytest.mark.parametrize(("new_tokens", "together"), [(1, True), (3, True), (4, False)])
def test_the_last_token_that_is_written_is_not_read(
    monkeypatch: pytest.MonkeyPatch, new_tokens: int, together: bool
) -> None:
    method = Sum([4])
    method.branches = Together()
    monkeypatch.setattr(ContextMethod, "generate", lambda *_, **__: "alone")
    written = method.generate(method.start(), [[1], [2, 3]], max_new_tokens=new_tokens)
    assert written == ([[new_tokens]] * 2 if together else "alone")


@pytest.mark.parametrize(("rows", "prompts"), [(1, 1), (2, 2)])
def test_prompts_that_share_no_row_are_continued_alone(
    monkeypatch: pytest.MonkeyPatch, rows: int, prompts: int
) -> None:
    method = Sum([9, 9])
    method.branches = Together()
    monkeypatch.setattr(ContextMethod, "generate", lambda *_, **__: "alone")
    assert method.generate(method.start(rows), [[1]] * prompts, max_new_tokens=2) == "alone"
    assert method.longest == []


def test_a_method_without_continuations_reads_copies() -> None:
    method, text = Sum([4]), [[1, 2], [3]]
    scores = method.score(method.start(), text)
    assert scores[0].tolist() == [expected(text[0]), [*expected(text[1]), 0.0]]
    assert method.longest == [2]
