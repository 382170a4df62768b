"""A cache in few bits: what is packed when, what it costs, and that reading in pieces packs the same.

In float64, because a number that rounding moves over the border between two codes moves by a whole step.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
import weakref
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contextlab import backbone as backbones
from contextlab.attention import empty_kv
from contextlab.backbone import Backbone
from contextlab.errors import UserError
from contextlab.methods.evalm import EVALM, EVALMConfig
from contextlab.methods.full import Full, FullConfig
from contextlab.methods.h2o import H2O, H2OConfig
from contextlab.methods.longmem import LongMem, LongMemConfig
from contextlab.methods.memtrm import MemTRM, MemTRMConfig
from contextlab.methods.parts.packed_cache import EXACT, GROUP, PackedKV, group_bytes
from contextlab.methods.retrieval import Retrieval, RetrievalConfig
from contextlab.methods.sinks import Sinks, SinksConfig
from contextlab.methods.sliding import Sliding, SlidingConfig
from contextlab.methods.trime import TRIME, TRIMEConfig
from contextlab.methods.window import Window, WindowConfig

LENGTH = 300
FORMS: dict[str, Any] = {
    "full": lambda b: Full(b, FullConfig(cache="int8")),
    "window": lambda b: Window(b, WindowConfig(N=100, cache="int4")),
    "sliding": lambda b: Sliding(b, SlidingConfig(N=50, recent=70, cache="int4")),
    "retrieval": lambda b: Retrieval(b, RetrievalConfig(N=60, sinks=2, K=8, cache="int4", storage_dtype="int8")),
    "sinks": lambda b: Sinks(b, SinksConfig(recent=100, sinks=2, cache="int4")),
    "h2o": lambda b: H2O(b, H2OConfig(N=40, keep=80, cache="int8")),
    "evalm": lambda b: EVALM(
        b, EVALMConfig(W=56, c=8, sinks=2, overlap=True, remote_bias=-0.5, cache="int4", storage_dtype="int8")
    ),
    "longmem": lambda b: LongMem(
        b,
        LongMemConfig(
            N=56,
            K=16,
            M=160,
            local="sliding",
            softmax="joint",
            init="memory",
            gate=0.0,
            cache="int8",
            storage_dtype="int8",
        ),
    ),
    "longmem, cold": lambda b: LongMem(b, LongMemConfig(N=96, K=16, M=192, cache="int4", storage_dtype="int4")),
    "memtrm": lambda b: MemTRM(b, MemTRMConfig(N=96, K=8, M=150, cache="int4")),
    "trime": lambda b: TRIME(b, TRIMEConfig(N=100, M=40, cache="int8")),
}


@functools.cache
def model(name: str = "tiny-llama") -> Backbone:
    return backbones.load(name, device="cpu", dtype="float64")


def text(length: int = LENGTH, rows: int = 1, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 256, (rows, length), generator=torch.Generator().manual_seed(seed))


def packed(state: Any) -> PackedKV:
    assert isinstance(state.kv, PackedKV)
    return state.kv


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("family", ["tiny-llama", "tiny-gpt2"])
@settings(max_examples=8, deadline=None)
@given(cuts=st.lists(st.integers(0, LENGTH), max_size=4))
def test_reading_in_pieces_gives_what_reading_at_once_gives(name: str, family: str, cuts: list[int]) -> None:
    method = FORMS[name](model(family))
    whole, expected = method.read(method.start(), text())
    state, pieces = method.start(), []
    bounds = [0, *sorted(cuts), LENGTH]
    for begin, end in itertools.pairwise(bounds):
        state, logprobs = method.read(state, text()[:, begin:end])
        pieces.append(logprobs)
    torch.testing.assert_close(torch.cat(pieces, 1), expected, atol=1e-6, rtol=0)
    for key, tensor in whole.tensors().items():
        torch.testing.assert_close(state.tensors()[key], tensor, msg=key)


@pytest.mark.parametrize("name", FORMS)
def test_rows_of_all_lengths_are_those_that_are_read_alone(name: str) -> None:
    method, lengths = FORMS[name](model()), torch.tensor([LENGTH, 0, 1, 63, 64, 65, 131, 257])
    tokens = text(rows=len(lengths))
    together, _ = method.read(method.start(len(lengths)), tokens, lengths)
    for row, length in enumerate(lengths.tolist()):
        alone, _ = method.read(method.start(), tokens[row : row + 1, :length])
        own = together.row(row)
        assert own.nbytes == alone.nbytes
        assert own.kv.used_B == alone.kv.used_B
        continued = [method.read(state, text(9, seed=1))[1] for state in (own, alone)]
        torch.testing.assert_close(*continued, atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", FORMS)
def test_candidates_are_scored_as_they_are_read(name: str) -> None:
    method = FORMS[name](model())
    state, _ = method.read(method.start(), text(110))
    candidates = [[3], [4, 5, 6], [7] * 30]
    scores = method.score(state, candidates)
    for number, candidate in enumerate(candidates):
        _, logprobs = method.read(state, torch.tensor([candidate]))
        torch.testing.assert_close(scores[0, number, : len(candidate)], logprobs[0], atol=1e-6, rtol=0)


def test_whole_groups_after_the_first_tokens_are_packed_once() -> None:
    method = Sliding(model(), SlidingConfig(N=60, sinks=4, cache="int8"))
    state = method.start()
    for length in range(1, 4 + GROUP):
        state, _ = method.read(state, text()[:, length - 1 : length])
        kv = packed(state)
        assert int(kv.used_B) == length
        assert int(kv.codes.used_B) == 0
        assert int(kv.first.used_B) == min(length, 4)
    state, _ = method.read(state, text()[:, 3 + GROUP : 4 + GROUP])
    before = packed(state)
    assert int(before.codes.used_B) == 1
    state, _ = method.read(state, text()[:, 4 + GROUP : 80])
    assert all(map(torch.equal, packed(state).codes.k, before.codes.k))


@pytest.mark.parametrize(("name", "passes"), [("full", 3), ("window", 3), ("sliding", 6), ("retrieval", 5)])
def test_a_pass_goes_beyond_the_ends_of_groups(name: str, passes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths, forward = list[int](), Backbone.forward

    def counted(self: Backbone, tokens_BT: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        lengths.append(tokens_BT.shape[1])
        return forward(self, tokens_BT, *args, **kwargs)

    method = FORMS[name](model())
    state = method.start()
    monkeypatch.setattr(Backbone, "forward", counted)
    method.read(state, text())
    assert len(lengths) == passes
    assert sum(lengths) == LENGTH


def test_what_stays_exact_is_exact_and_what_is_packed_is_near() -> None:
    exact, method = Full(model()), Full(model(), FullConfig(cache="int8"))
    whole, kv = exact.read(exact.start(), text(100))[0].kv, packed(method.read(method.start(), text(100))[0])
    opened = kv.opened()
    # The lowest layer reads what no packed key has changed yet.
    few = slice(EXACT, EXACT + GROUP)
    for near, own in ((opened.k[0], whole.k[0]), (opened.v[0], whole.v[0])):
        assert torch.equal(near[:, :, few.stop :], own[:, :, few.stop :])
        spread = own[:, :, few].amax() - own[:, :, few].amin()
        assert 0 < float((near - own).abs().max()) < float(spread) / 255


@pytest.mark.parametrize(
    ("kind", "config", "first"),
    [
        (Full, FullConfig(), EXACT),
        (Window, WindowConfig(N=100), EXACT),
        (Sliding, SlidingConfig(N=30, recent=90, sinks=0), EXACT),
        (Sliding, SlidingConfig(N=20, recent=90, sinks=9), 9),
    ],
)
def test_the_first_tokens_are_never_packed(kind: Any, config: Any, first: int) -> None:
    plain, few = kind(model(), config), kind(model(), dataclasses.replace(config, cache="int4"))
    whole, kv = plain.read(plain.start(), text(90))[0].kv, packed(few.read(few.start(), text(90))[0])
    assert int(kv.codes.used_B) == 1
    assert kv.first.slots == first
    assert torch.equal(kv.opened().k[0][:, :, :first], whole.k[0][:, :, :first])


def test_what_the_first_tokens_are_does_not_change_the_steps_of_others() -> None:
    generator = torch.Generator().manual_seed(0)
    like, used_B = model().empty_kv(1), torch.tensor([EXACT + GROUP])
    shape = (*like.k[0].shape[:2], EXACT + GROUP, like.k[0].shape[3])
    plain = torch.randn(shape, dtype=torch.float64, generator=generator)
    large = torch.cat((1000 * plain[:, :, :EXACT], plain[:, :, EXACT:]), dim=2)
    empty, never = Full(model(), FullConfig(cache="int4")).start().kv, torch.zeros(1, dtype=torch.bool)
    kvs = (like.replace((x_BKSD,) * len(like.k), (x_BKSD,) * len(like.k), used_B) for x_BKSD in (plain, large))
    restored = [empty.closed(kv, never).opened() for kv in kvs]
    for first, second in zip(restored[0].k + restored[0].v, restored[1].k + restored[1].v, strict=True):
        assert torch.equal(first[:, :, EXACT:], second[:, :, EXACT:])


def test_more_bits_lose_less() -> None:
    methods = [Full(model(), FullConfig(cache=cache)) for cache in (None, "int8", "int4")]
    exact, *few = (method.read(method.start(), text(128))[1] for method in methods)
    eight, four = (float((logprobs - exact).abs().max()) for logprobs in few)
    assert 0 < eight < four / 4


def test_a_group_takes_its_codes_and_ranges() -> None:
    assert group_bytes(64, "int8") == (64 * 64 + 64 * 4, 64 * 64 + 64 * 4)
    assert group_bytes(64, "int4") == (32 * 64 + 64 * 4, 32 * 64 + 64 * 4)


def test_of_what_is_restored_few_layers_are_in_memory_beside_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    kv = empty_kv(8, (2, 1, 8), torch.zeros(()))
    layers = tuple(torch.randn(2, 1, EXACT + 2 * GROUP, 8) for _ in range(8))
    grown = kv.replace(layers, layers, torch.tensor([EXACT + GROUP, EXACT + 2 * GROUP]))
    cache = PackedKV.empty(kv, "int8", EXACT).closed(grown, torch.zeros(2, dtype=torch.bool))
    restored: list[weakref.ref[torch.Tensor]] = []
    in_memory: list[int] = []
    for name in ("_keys", "_values"):
        restore = getattr(PackedKV, name)

        def watched(self: PackedKV, *args: Any, restore: Any = restore) -> torch.Tensor:
            in_memory.append(sum(reference() is not None for reference in restored))
            layer: torch.Tensor = restore(self, *args)
            restored.append(weakref.ref(layer))
            return layer

        monkeypatch.setattr(PackedKV, name, watched)
    assert cache.opened().slots == EXACT + 2 * GROUP
    assert len(in_memory) == 16
    assert max(in_memory) <= 2


def test_copies_have_all_parts() -> None:
    method = FORMS["full"](model())
    state, _ = method.read(method.start(), text(100))
    copied = copy.deepcopy(state)
    for key, tensor in state.tensors().items():
        assert torch.equal(copied.tensors()[key], tensor)
    assert torch.equal(method.read(copied, text(5))[1], method.read(state, text(5))[1])


def test_heads_of_an_odd_width_need_eight_bits() -> None:
    kv = model().empty_kv(1)
    odd = dataclasses.replace(kv, k=tuple(x[..., :7] for x in kv.k), v=tuple(x[..., :7] for x in kv.v))
    PackedKV.empty(odd, "int8", 0)
    with pytest.raises(UserError, match="use int8"):
        PackedKV.empty(odd, "int4", 0)


def test_what_is_learned_gets_no_gradient_through_packed_tokens() -> None:
    method = Full(model(), FullConfig(cache="int8", rank=2, weights="none"))
    state, predicted = method.learn(method.start(), text(100))
    predicted.logprobs_BT.sum().backward()
    assert any(weight.grad is not None for weight in method.learned.parameters())
    assert not any(x.requires_grad for x in packed(state).codes.k)
