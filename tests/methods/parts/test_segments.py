from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from contextlab.backbone import Backbone, load
from contextlab.errors import UserError
from contextlab.methods.parts.local_cache import LocalCache, LocalConfig, LocalState
from contextlab.methods.parts.segments import SegmentMethod

DROPPED = -float("inf")


class Ranked(SegmentMethod[LocalConfig, LocalState]):
    """Keeps the slots that a list of numbers ranks highest."""

    Config = LocalConfig

    def __init__(self, backbone: Backbone, local: LocalCache, ranks: list[float] | None = None) -> None:
        super().__init__(backbone, LocalConfig(N=local.segment))
        self.local, self.ranks = local, ranks

    def importance(self, state: LocalState) -> Tensor | None:
        """By slot; by age where there are no numbers."""
        slots_S = torch.arange(state.kv.slots)
        rank_S = slots_S.float() if self.ranks is None else torch.tensor(self.ranks)[: len(slots_S)]
        return rank_S.expand(state.batch_size, -1)


@pytest.fixture(scope="module")
def llama() -> Backbone:
    return load("tiny-llama", device="cpu")


def tokens(count: int) -> Tensor:
    return torch.arange(1, count + 1)[None]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from([DROPPED, 0.0, 1.0, 2.0, 3.0]), min_size=8, max_size=8),
    st.integers(0, 3),
    st.integers(1, 6),
)
def test_the_most_important_slots_stay_in_their_order(ranks: list[float], first: int, last: int) -> None:
    """Against sorting by hand; a value of the first layer tells which token is in a slot."""
    backbone = load("tiny-llama", device="cpu")
    ranks = [rank + n / 100 for n, rank in enumerate(ranks)]  # no ties
    method = Ranked(backbone, LocalCache(8, keep_first=first, keep_last=last), ranks)
    before, _ = method.read(method.start(), tokens(7), logprobs=False)
    whole = SegmentMethod.forward(method, before, tokens(8)[:, 7:], method.local.layout(before, 1))[1][0]
    state, _ = method.read(method.start(), tokens(8), logprobs=False)
    weight = [float("inf") if n < first else rank for n, rank in enumerate(ranks)]
    best = sorted(range(8), key=lambda n: -weight[n])[: first + last]
    expected = sorted(n for n in best if weight[n] > DROPPED)
    held = whole.grown(torch.ones(1, dtype=torch.int64)).v[0][0, 0]
    assert int(state.kv.used_B) == len(expected)
    torch.testing.assert_close(state.kv.v[0][0, 0], held[expected], rtol=1e-4, atol=1e-5)


def test_ranking_by_age_is_what_a_cache_does_without_importance(llama: Backbone) -> None:
    local = LocalCache(8, keep_first=2, keep_last=5)
    ranked, plain = Ranked(llama, local), Ranked(llama, local)
    plain.importance = lambda state: None  # type: ignore[method-assign, assignment]
    state, logprobs = ranked.read(ranked.start(), tokens(40))
    expected_state, expected = plain.read(plain.start(), tokens(40))
    assert logprobs is not None
    assert expected is not None
    assert torch.equal(logprobs, expected)
    assert all(map(torch.equal, state.kv.k, expected_state.kv.k))


def test_all_heads_keep_equally_many_slots_also_where_some_have_no_importance(llama: Backbone) -> None:
    class Uneven(Ranked):
        def importance(self, state: LocalState) -> tuple[Tensor, ...]:  # type: ignore[override]
            ranks = torch.zeros(1, llama.kv_heads, state.kv.slots)
            ranks[:, 0, 3:] = DROPPED
            return (ranks,) * llama.layers

    method = Uneven(llama, LocalCache(8, keep_last=5))
    full = Ranked(llama, LocalCache(16))
    state, _ = method.read(method.start(), tokens(8))
    expected, _ = full.read(full.start(), tokens(8))
    assert int(state.kv.used_B) == 5
    for head in range(llama.kv_heads):  # of equally important slots the earlier stay
        assert torch.equal(state.kv.v[0][0, head], expected.kv.v[0][0, head, :5])


NAN = float("nan")


class Doubtful(Ranked):
    """Has no number for some slots, in every layer and head where it ranks by head."""

    by_head = False

    def importance(self, state: LocalState) -> Any:
        """As ranked."""
        rank_BS = super().importance(state)
        if not self.by_head or rank_BS is None:
            return rank_BS
        return [rank_BS[:, None].expand(-1, self.backbone.kv_heads, -1)] * self.backbone.layers


@pytest.mark.parametrize("by_head", [False, True])
@pytest.mark.parametrize("nan", [2, 7])
def test_an_importance_that_is_no_number_is_refused(nan: int, by_head: bool, llama: Backbone) -> None:
    ranks = [NAN if slot == nan else 0.0 for slot in range(8)]
    method = Doubtful(llama, LocalCache(8, keep_last=5), ranks)
    method.by_head = by_head
    state, _ = method.read(method.start(), tokens(7))
    with pytest.raises(UserError, match="The importance that Doubtful gives to a token is not a number: return"):
        method.read(state, tokens(1))


@pytest.mark.parametrize("by_head", [False, True])
def test_no_number_is_needed_where_importance_decides_nothing(by_head: bool, llama: Backbone) -> None:
    """For the first slots, at padding, and in a row whose segment goes on."""

    class Indifferent(Doubtful):
        def importance(self, state: LocalState) -> Any:
            padding_BS = torch.arange(state.kv.slots) >= state.kv.used_B[:, None]
            unused_B1S = (padding_BS | (state.left_B > 0)[:, None])[:, None]
            parts_BKS = super().importance(state)
            if isinstance(parts_BKS, Tensor):
                return parts_BKS.masked_fill(unused_B1S[:, 0], NAN)
            return [part_BKS.masked_fill(unused_B1S, NAN) for part_BKS in parts_BKS]

    method = Indifferent(llama, LocalCache(8, keep_first=2, keep_last=3), [NAN, NAN, *[0.0] * 9])
    method.by_head = by_head
    state, _ = method.read(method.start(2), tokens(8).repeat(2, 1), torch.tensor([8, 3]))
    state, _ = method.read(state, tokens(5).repeat(2, 1), torch.tensor([1, 5]))
    assert state.left_B.tolist() == [7, 8]
    assert state.kv.used_B.tolist() == [6, 5]


def test_only_segments_that_start_cold_are_placed_for_what_is_ahead(llama: Backbone) -> None:
    cold, warm = Ranked(llama, LocalCache(8)), Ranked(llama, LocalCache(8, keep_last=4))
    assert (cold.capabilities.segment, warm.capabilities.segment) == (8, None)
