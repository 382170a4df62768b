"""The packed bank: what it holds, that this follows from the tokens alone, and how many bytes it takes."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from law_forms import AROUND
from random_texts import read, text
from torch import Tensor

from contextlab import states
from contextlab.attention import KV, empty_kv
from contextlab.backbone import Backbone, load
from contextlab.errors import UserError
from contextlab.methods.longmem import LongMem, LongMemConfig
from contextlab.methods.parts.banks import ChunkBank, StoredIn
from contextlab.methods.parts.few_bits import Storage
from contextlab.methods.parts.groups import GROUP, group_tokens
from contextlab.methods.parts.packed_banks import PackedBank, empty_bank
from contextlab.methods.retrieval import Retrieval, RetrievalConfig
from contextlab.testing import laws

LAYERS, HEADS, WIDTH = 2, 2, 4
FOREVER = 10**6
STORAGES: tuple[Storage, ...] = ("int8", "int4")


def empty(rows: int = 1, csz: int = 4, storage: Storage | None = "int8", stored_in: StoredIn = "memory") -> Any:
    return empty_bank(empty_kv(LAYERS, (rows, HEADS, WIDTH), torch.empty(0)), csz, storage, stored_in)


def tokens(lengths: list[int], first: list[int], seed: int = 0) -> KV:
    """Random keys and values, the same for the same row and token; what is behind a row's last is no token."""
    everything = torch.randn(
        2 * LAYERS, 3, HEADS, 600, WIDTH, generator=torch.Generator().manual_seed(seed)
    ) + torch.arange(WIDTH)
    x = torch.full((2 * LAYERS, len(lengths), HEADS, max(lengths), WIDTH), 1e6)
    for row, (length, begin) in enumerate(zip(lengths, first, strict=True)):
        x[:, row, :, :length] = everything[:, row, :, begin : begin + length]
    return KV(tuple(x[:LAYERS]), tuple(x[LAYERS:]), torch.tensor(lengths))


def chunks(bank: Any, layer: int, row: int) -> tuple[Tensor, Tensor]:
    """Keys and values of a row's whole chunks, `KncD`, as attention gets them."""
    count = int(bank.count_B[row])
    ids = torch.arange(count).expand(len(bank.count_B), HEADS, 1, -1)
    k, v, within = bank.taken(layer, ids, ids < bank.count_B[:, None, None, None])
    return k[row][:, within[row, 0, 0]], v[row][:, within[row, 0, 0]]


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 3).flatmap(
        lambda rows: st.lists(st.lists(st.integers(0, 70), min_size=rows, max_size=rows), min_size=1, max_size=6)
    ),
    st.sampled_from([1, 3, 4, 7]),
    st.sampled_from([70, 150, FOREVER]),
    st.sampled_from(STORAGES),
)
@torch.no_grad()
def test_it_holds_what_a_wide_bank_holds(additions: list[list[int]], csz: int, most: int, storage: Storage) -> None:
    """And whole groups leave it; nearly the same numbers, exactly those of the newest tokens."""
    rows, unit = len(additions[0]), group_tokens(csz)
    bank, whole, read_ = empty(rows, csz, storage), empty(rows, csz, None), [0] * rows
    held = torch.zeros(rows, dtype=torch.int64)
    for lengths in additions:
        bank, whole = (each.add(tokens(lengths, read_), limit) for each, limit in ((bank, most), (whole, FOREVER)))
        read_ = [begin + length for begin, length in zip(read_, lengths, strict=True)]
        held += torch.tensor(lengths)
        held -= ((held - most).clamp(min=0) + unit - 1) // unit * unit
        bank.check("bank", most)
        assert torch.equal(bank.used_B, held)
        assert torch.equal(bank.count_B, held // csz)
    for row, used in enumerate(held.tolist()):
        dropped = (read_[row] - used) // csz
        for layer in range(LAYERS):
            ours, exact = chunks(bank, layer, row), chunks(whole, layer, row)
            packed = used // unit * unit // csz
            for x, y in zip(ours, exact, strict=True):
                y = y[:, dropped:]
                assert torch.equal(x[:, packed:], y[:, packed:])
                assert x.shape == y.shape
                if x.numel():
                    assert float((x - y).abs().max()) <= (0.03 if storage == "int8" else 0.5)


@pytest.mark.parametrize("storage", STORAGES)
@torch.no_grad()
def test_what_it_holds_depends_on_the_tokens_alone(storage: Storage) -> None:
    """Not on how they were added, nor on other rows."""
    whole = empty(3, storage=storage).add(tokens([300, 40, 130], [0, 0, 0]), FOREVER)
    pieces, begins = empty(3, storage=storage), [0, 0, 0]
    for lengths in ([1, 0, 64], [63, 40, 1], [0, 0, 65], [236, 0, 0]):
        pieces = pieces.add(tokens(lengths, begins), FOREVER)
        begins = [begin + length for begin, length in zip(begins, lengths, strict=True)]
    for row, length in enumerate((300, 40, 130)):
        lone = tokens([length] * (row + 1), [0] * (row + 1))
        alone = empty(storage=storage).add(
            KV(tuple(x[row:] for x in lone.k), tuple(x[row:] for x in lone.v), lone.used_B[row:]), FOREVER
        )
        for layer in range(LAYERS):
            for other, own in ((pieces, row), (alone, 0)):
                for x, y in zip(chunks(whole, layer, row), chunks(other, layer, own), strict=True):
                    assert torch.equal(x, y)


@pytest.mark.parametrize("storage", STORAGES)
@torch.no_grad()
def test_a_search_ranks_chunks_nearly_as_a_wide_one(storage: Storage) -> None:
    new = tokens([320, 100], [0, 0])
    bank, whole = (empty(2, storage=each).add(new, FOREVER) for each in (storage, None))
    q = torch.randn(2, 4, 50, WIDTH, generator=torch.Generator().manual_seed(1))
    for shared in (False, True):
        (ids, present), (exact, there) = (each.search(1, q, 10, shared=shared) for each in (bank, whole))
        assert torch.equal(present, there)
        same = (ids[..., None] == exact[..., None, :]).any(-1)
        assert float(same.float().mean()) > (0.97 if storage == "int8" else 0.9)


@pytest.mark.parametrize("storage", STORAGES)
@torch.no_grad()
def test_only_what_is_retrieved_is_unpacked(storage: Storage) -> None:
    bank = empty(storage=storage).add(tokens([512], [0]), FOREVER)
    ids = torch.tensor([3, 90, 3, 41]).expand(1, 4, 1, 4)
    k, _, within = bank.taken(0, ids, torch.tensor([True, True, True, False]).expand_as(ids))
    assert k.shape[2] == 2
    assert within[0, 0, 0, :3].tolist() == [0, 1, 0]


@pytest.mark.parametrize("stored_in", ["host", "disk"])
@pytest.mark.parametrize("storage", STORAGES)
@torch.no_grad()
def test_where_it_is_stored_changes_nothing(
    storage: Storage, stored_in: StoredIn, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("CONTEXTLAB_CACHE", str(tmp_path))
    bank, other = empty(storage=storage), empty(storage=storage, stored_in=stored_in)
    for begin in range(0, 300, 50):
        bank, other = (each.add(tokens([50], [begin]), 192) for each in (bank, other))
    for layer in range(LAYERS):
        for x, y in zip(chunks(bank, layer, 0), chunks(other, layer, 0), strict=True):
            assert torch.equal(x, y)


@torch.no_grad()
def test_banks_that_grow_out_of_one_do_not_see_each_other() -> None:
    bank = empty().add(tokens([200], [0]), FOREVER)
    before = copy.deepcopy(bank)
    first, second = (bank.add(tokens([150], [200], seed), FOREVER) for seed in (1, 2))
    for layer in range(LAYERS):
        for each in (bank, first, second):
            for x, y in zip(chunks(before, layer, 0), chunks(each, layer, 0), strict=True):
                assert torch.equal(x[:, :48], y[:, :48])
        assert not torch.equal(chunks(first, layer, 0)[0][:, 50:], chunks(second, layer, 0)[0][:, 50:])


def test_a_bank_whose_parts_do_not_fit_is_refused() -> None:
    bank: PackedBank = empty().add(tokens([150], [0]), FOREVER)
    bank.check("bank", 192)
    short = dataclasses.replace(bank, kv=bank.kv.replace(bank.kv.k, bank.kv.v, bank.kv.used_B - 1))
    broken = bank.mean.k[0].clone()
    broken[..., :2] = torch.tensor([float("nan")]).half().view(torch.uint8)
    damaged = dataclasses.replace(bank, mean=KV((broken, *bank.mean.k[1:]), (), bank.mean.used_B))
    waiting = ChunkBank.empty(empty_kv(LAYERS, (1, HEADS, WIDTH), torch.empty(0)), 4, torch.float32)
    full = dataclasses.replace(bank, open=waiting.add(tokens([GROUP], [0]), FOREVER))
    for wrong, what in ((short, "one key for every chunk"), (damaged, "not finite"), (full, "bank.open.kv")):
        with pytest.raises(states.Misfit, match=what):
            wrong.check("bank", 192)
    with pytest.raises(states.Misfit, match="bank"):
        bank.check("bank", 64)


MADE: dict[str, Any] = {
    "retrieval": lambda b, **also: Retrieval(b, RetrievalConfig(N=24, K=16, **also)),
    "longmem": lambda b, **also: LongMem(b, LongMemConfig(N=32, K=16, init="paper", **also)),
}


@pytest.fixture(scope="module")
def llama() -> Backbone:
    return load("tiny-llama", device="cpu")


@pytest.mark.parametrize("name", list(MADE))
def test_few_bits_change_little_and_take_little(llama: Backbone, name: str) -> None:
    results, sizes = {}, {}
    for storage in ("float32", *STORAGES):
        method = MADE[name](llama, storage_dtype=storage)
        state, logprobs = method.read(method.start(), text(300))
        results[storage], sizes[storage] = logprobs, sum(x.nbytes for x in state.bank.kv.k)
    changes = [float((results[storage] - results["float32"]).abs().mean()) for storage in STORAGES]
    assert 0 < changes[0] < 0.03
    assert changes[0] < changes[1] < 0.1
    assert sizes["int4"] * 2 == sizes["int8"] < sizes["float32"] / 4


@pytest.mark.parametrize("storage", STORAGES)
def test_a_state_in_bfloat16_has_the_same_form(storage: Storage) -> None:
    method = Retrieval(
        load("tiny-llama", device="cpu", dtype="bfloat16"), RetrievalConfig(N=24, K=16, storage_dtype=storage)
    )
    assert bool(read(method, text(200)).isfinite().all())


@pytest.mark.parametrize("kind", [RetrievalConfig, LongMemConfig])
def test_a_bank_has_room_for_a_group(kind: Any) -> None:
    with pytest.raises(UserError, match="M=32 is less than the 64 tokens that storage_dtype=int8 packs together"):
        kind(M=32, storage_dtype="int8")
    assert kind(M=32).M == 32
    assert LongMemConfig(M=0, storage_dtype="int4").M == 0


FORMS: dict[str, Any] = {
    "longmem": lambda b: LongMem(b, LongMemConfig(N=32, K=16, csz=8, storage_dtype="int8")),
    "retrieval": lambda b: Retrieval(b, RetrievalConfig(N=24, K=16, M=128, storage_dtype="int8", rank=1)),
    "retrieval, few layers": lambda b: Retrieval(
        b, RetrievalConfig(N=20, K=8, csz=2, first_layer=0, every=3, storage_dtype="int4", stored_in="host")
    ),
}


# In float32 the 1e-7 by which rows side by side differ from rows alone are enough for another code, a step of 1e-2.
@pytest.mark.parametrize("law", [name for name in laws.LAWS if name not in AROUND])
@pytest.mark.parametrize("name", list(FORMS))
def test_it_keeps_the_laws(name: str, law: str) -> None:
    assert laws.Case(law, "tiny-gpt2", "float64").broken(FORMS[name]) is None


@pytest.mark.parametrize("law", laws.BITWISE)
@pytest.mark.parametrize("name", list(FORMS))
def test_it_keeps_the_bitwise_laws_in_every_type(name: str, law: str) -> None:
    for dtype in ("float32", "bfloat16"):
        assert laws.Case(law, "tiny-llama", dtype).broken(FORMS[name]) is None
