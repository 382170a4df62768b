"""The bank of what has left the view: what it holds, what a search gives, and that states never share a change."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_texts import read, text
from torch.nn.functional import pad

import contextlab
from contextlab import states
from contextlab.accounting.memory import storage_bytes
from contextlab.attention import KV, empty_kv
from contextlab.backbone import load
from contextlab.errors import UserError
from contextlab.methods.parts.banks import ChunkBank, leaving
from contextlab.methods.retrieval import Retrieval, RetrievalConfig

LAYERS, HEADS, WIDTH = 2, 2, 4
FOREVER = 10**6


def empty(rows: int = 1, csz: int = 3, dtype: torch.dtype = torch.float32) -> ChunkBank:
    return ChunkBank.empty(empty_kv(LAYERS, (rows, HEADS, WIDTH), torch.empty(0)), csz, dtype)


def tokens(lengths: list[int], first: list[int]) -> KV:
    """Keys that say which token of their row they are; values are their negatives; what is behind is no token."""
    longest = max(lengths)
    k = torch.full((len(lengths), HEADS, longest, WIDTH), 10.0**6)
    for row, (length, begin) in enumerate(zip(lengths, first, strict=True)):
        k[row, :, :length] = torch.arange(begin, begin + length).float()[:, None]
    return KV((k, k + 0.5), (-k, -k - 0.5), torch.tensor(lengths))


def held(bank: ChunkBank) -> list[list[int]]:
    """The tokens of every row, after a look at all layers and at the means."""
    rows = []
    for row, used in enumerate(bank.kv.used_B.tolist()):
        for layer in range(LAYERS):
            k, v = bank.kv.k[layer][row, :, :used], bank.kv.v[layer][row, :, :used]
            assert torch.equal(k, -v)
            assert torch.equal(k - 0.5 * layer, bank.kv.k[0][row, :, :used])
            whole = used // bank.csz
            means = k[:, : whole * bank.csz].unflatten(1, (whole, bank.csz)).mean(2)
            assert torch.equal(bank.mean.k[layer][row, :, :whole], means)
            chunk_k, chunk_v = (x[row] for x in bank.tokens(layer))
            assert torch.equal(chunk_k[:, :whole].flatten(1, 2), k[:, : whole * bank.csz])
            assert torch.equal(chunk_v[:, :whole].flatten(1, 2), v[:, : whole * bank.csz])
        rows.append(bank.kv.k[0][row, 0, :used, 0].int().tolist())
    return rows


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 3).flatmap(
        lambda rows: st.lists(st.lists(st.integers(0, 7), min_size=rows, max_size=rows), max_size=8)
    ),
    st.integers(1, 4),
    st.sampled_from([4, 12, FOREVER]),
)
def test_it_holds_the_newest_tokens_in_whole_chunks_from_the_oldest_on(
    additions: list[list[int]], csz: int, chunks: int
) -> None:
    most = csz * chunks
    rows = len(additions[0]) if additions else 1
    bank, read = empty(rows, csz), [0] * rows
    expected: list[list[int]] = [[] for _ in range(rows)]
    with torch.no_grad():
        for lengths in additions:
            bank = bank.add(tokens(lengths, read), most)
            for row, length in enumerate(lengths):
                expected[row] += range(read[row], read[row] + length)
                while len(expected[row]) > most:
                    del expected[row][:csz]
            read = [begin + length for begin, length in zip(read, lengths, strict=True)]
            assert held(bank) == expected
            assert bank.count_B.tolist() == [len(row) // csz for row in expected]


@torch.no_grad()
def test_banks_that_grow_out_of_one_do_not_see_each_other() -> None:
    bank = empty()
    for begin in range(0, 60, 20):
        bank = bank.add(tokens([20], [begin]), FOREVER)
    first, second = bank.add(tokens([20], [100]), FOREVER), bank.add(tokens([20], [200]), FOREVER)
    assert held(bank) == [list(range(60))]
    assert held(first) == [[*range(60), *range(100, 120)]]
    assert held(second) == [[*range(60), *range(200, 220)]]


@torch.no_grad()
def test_a_long_bank_is_not_copied_for_every_window() -> None:
    """Each token is moved a number of times that does not grow with the length."""
    bank, moved, window = empty(), 0, 10
    for begin in range(0, 4000, window):
        before = bank.kv.k[0].data_ptr()
        bank = bank.add(tokens([window], [begin]), FOREVER)
        moved += (bank.kv.k[0].data_ptr() != before) * bank.kv.slots
    assert moved < 25 * 4000
    assert storage_bytes(bank.kv.k) <= 1.1 * sum(x.nbytes for x in bank.kv.k)


def test_a_graph_is_kept_through_additions_and_searches_have_none() -> None:
    new = tokens([6], [0])
    k = tuple(x.clone().requires_grad_() for x in new.k)
    bank = empty().add(KV(k, new.v, new.used_B), FOREVER).add(tokens([6], [6]), FOREVER)
    assert not any(mean.requires_grad for mean in bank.mean.k)
    bank.tokens(1)[0].sum().backward()
    assert k[0].grad is None
    assert k[1].grad is not None
    assert bool((k[1].grad == 1).all())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_keys_and_values_are_stored_as_narrow_as_asked(dtype: torch.dtype) -> None:
    bank = empty(dtype=dtype).add(tokens([7], [0]), FOREVER)
    assert {x.dtype for x in (*bank.kv.k, *bank.kv.v)} == {dtype}
    assert {mean.dtype for mean in bank.mean.k} == {torch.float32}
    bank = bank.add(tokens([2, 0][:1], [7]), FOREVER)
    assert bank.kv.k[0].dtype == dtype
    assert held(bank) == [list(range(9))]


def test_the_best_chunks_of_every_query_are_found() -> None:
    bank = empty(2).add(tokens([12, 5], [0, 0]), FOREVER)
    q = torch.ones(2, 4, 1, WIDTH)
    ids, result = bank.search(0, q, 2)
    assert ids[0, :, 0].tolist() == [[3, 2]] * 4
    assert result[0].all()
    assert result[1, :, 0].tolist() == [[True, False]] * 4
    assert bank.search(0, -q, 2)[0][0, :, 0].tolist() == [[0, 1]] * 4


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 7), min_size=2, max_size=2), min_size=1, max_size=6),
    st.integers(1, 3),
    st.sampled_from([4, FOREVER]),
)
@torch.no_grad()
def test_the_best_tokens_of_every_chunk_stand_for_it(additions: list[list[int]], most: int, chunks: int) -> None:
    """Whatever additions complete a chunk, and in every layer and head by the scores of its own."""
    csz, read = 3, [0, 0]
    kv = empty_kv(LAYERS, (2, HEADS, WIDTH), torch.empty(0))
    bank = ChunkBank.empty(kv, csz, torch.float32, representatives=most)
    everything = torch.randint(0, 5, (LAYERS, 2, HEADS, 60, 1)).float()  # with many ties
    for lengths in additions:
        new = tokens(lengths, read)
        scores = everything.new_zeros(LAYERS, 2, HEADS, max(lengths), 1)
        for row, (begin, length) in enumerate(zip(read, lengths, strict=True)):
            scores[:, row, :, :length] = everything[:, row, :, begin : begin + length]
        bank = bank.add(new, csz * chunks, scores=tuple(scores))
        read = [begin + length for begin, length in zip(read, lengths, strict=True)]
        bank.check("bank", csz * chunks)
    for row, count in enumerate(bank.count_B.tolist()):
        first = int(bank.kv.k[0][row, 0, 0, 0]) if count else 0
        for layer in range(LAYERS):
            for head in range(HEADS):
                for chunk in range(count):
                    tokens_of = range(first + chunk * csz, first + (chunk + 1) * csz)
                    score = {i: float(everything[layer, row, head, i]) for i in tokens_of}
                    best = sorted(tokens_of, key=lambda i: (-score[i], i))[:most]
                    expected = sum(best) / most + 0.5 * layer
                    assert float(bank.mean.k[layer][row, head, chunk, 0]) == pytest.approx(expected)


@torch.no_grad()
def test_scores_that_wait_may_have_the_slots_of_rows_that_are_gone() -> None:
    kv = empty_kv(LAYERS, (1, HEADS, WIDTH), torch.empty(0))
    bank = ChunkBank.empty(kv, 3, torch.float32, representatives=1)
    bank = bank.add(tokens([4], [0]), FOREVER, scores=(torch.rand(1, HEADS, 4, 1),) * LAYERS)
    wider = dataclasses.replace(bank, open_scores=tuple(pad(x, (0, 0, 0, 1), value=9.0) for x in bank.open_scores))
    new, scores = tokens([5], [4]), (torch.rand(1, HEADS, 5, 1),) * LAYERS
    result, expected = (each.add(new, FOREVER, scores=scores) for each in (wider, bank))
    assert all(torch.equal(*pair) for pair in zip(result.mean.k, expected.mean.k, strict=True))


def test_all_heads_may_take_the_chunks_that_are_best_for_them_together() -> None:
    bank = empty(2).add(tokens([12, 5], [0, 0]), FOREVER)
    q = torch.ones(2, 4, 1, WIDTH)
    q[:, 1] = -1.5  # alone it would take the first chunks
    ids, result = bank.search(0, q, 2, shared=True)
    assert ids[0, :, 0].tolist() == [[3, 2]] * 4
    assert result[1, :, 0].tolist() == [[True, False]] * 4
    q[:, 1] = -3.5
    assert bank.search(0, q, 2, shared=True)[0][0, :, 0].tolist() == [[0, 1]] * 4


def test_nothing_leaves_a_local_cache_inside_a_segment() -> None:
    method = Retrieval(load("tiny-llama", device="cpu"), RetrievalConfig(N=8, K=4))
    state, _ = method.read(method.start(2), torch.full((2, 15), 7), logprobs=False)
    assert leaving(state, method.local, [1, 2], method.backbone).used_B.tolist() == [0, 0]
    ended = dataclasses.replace(state, left_B=torch.tensor([0, 3]))
    outgoing = leaving(ended, method.local, [1, 2], method.backbone)
    assert outgoing.used_B.tolist() == [15 - 4 - 8, 0]


def test_loaded_banks_whose_parts_do_not_fit_are_refused() -> None:
    bank = empty().add(tokens([12], [0]), FOREVER)
    bank.check("bank", 12)
    with pytest.raises(states.Misfit, match=r"slots of bank\.kv in use"):
        bank.check("bank", 9)
    with pytest.raises(states.Misfit, match=r"bank\.mean does not have one key for every chunk"):
        ChunkBank(bank.kv, bank.mean.cut(3, torch.tensor([True])), bank.csz).check("bank", 12)


@settings(max_examples=20, deadline=None)
@given(
    st.integers(1, 2).flatmap(
        lambda rows: st.lists(st.lists(st.integers(0, 7), min_size=rows, max_size=rows), min_size=1, max_size=6)
    ),
    st.sampled_from([4, FOREVER]),
)
def test_a_bank_on_disk_holds_what_one_in_memory_holds(additions: list[list[int]], chunks: int) -> None:
    rows, csz = len(additions[0]), 3
    kv = empty_kv(LAYERS, (rows, HEADS, WIDTH), torch.empty(0))
    bank, disk = (ChunkBank.empty(kv, csz, torch.float32, where) for where in ("memory", "disk"))
    read = [0] * rows
    with torch.no_grad():
        for lengths in additions:
            new = tokens(lengths, read)
            bank, disk = bank.add(new, csz * chunks), disk.add(new, csz * chunks)
            read = [begin + length for begin, length in zip(read, lengths, strict=True)]
            assert held(disk) == held(bank)
            q = torch.ones(rows, 2 * HEADS, 1, WIDTH)
            for ours, theirs in zip(disk.search(1, q, 2), bank.search(1, q, 2), strict=True):
                assert torch.equal(ours, theirs)


@torch.no_grad()
def test_a_bank_on_disk_stays_where_it_is_and_its_states_do_not_see_each_other() -> None:
    kv = empty_kv(LAYERS, (1, HEADS, WIDTH), torch.empty(0))
    bank = ChunkBank.empty(kv, 3, torch.float32, "disk").add(tokens([20], [0]), 10**6)
    where = bank.kv.k[0].data_ptr()
    first = bank.add(tokens([20], [100]), 10**6)
    assert first.kv.k[0].data_ptr() == where
    second = bank.add(tokens([20], [200]), 10**6)
    assert held(bank) == [list(range(20))]
    assert held(first) == [[*range(20), *range(100, 120)]]
    assert held(second) == [[*range(20), *range(200, 220)]]


@torch.no_grad()
def test_a_cache_folder_that_cannot_be_written_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CONTEXTLAB_CACHE", str(tmp_path / "file"))
    kv = empty_kv(LAYERS, (1, HEADS, WIDTH), torch.empty(0))
    with pytest.raises(UserError, match="set CONTEXTLAB_CACHE"):
        ChunkBank.empty(kv, 3, torch.float32, "disk").add(tokens([20], [0]), FOREVER)


@pytest.mark.parametrize("name", ["retrieval(N=32,K=16,{})", "longmem(N=32,K=16,init=paper,short_bank=zero_slot,{})"])
def test_a_bank_on_the_host_changes_no_bit_on_a_cpu(name: str) -> None:
    tokens_BT, lengths_B = text(200, rows=3), torch.tensor([200, 30, 131])
    results = []
    for where in ("memory", "host"):
        method = contextlab.load(name.format(f"stored_in={where}"), backbone="tiny-llama", device="cpu")
        state, logprobs = method.read(method.start(3), tokens_BT, lengths_B)
        results.append((logprobs, method.read(state, text(60, rows=3, seed=1))[1], *state.tensors().values()))
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(*results, strict=True))


@torch.no_grad()
def test_of_a_bank_on_the_host_only_what_is_retrieved_is_copied() -> None:
    kv = empty_kv(LAYERS, (2, HEADS, WIDTH), torch.empty(0))
    memory, host = (
        ChunkBank.empty(kv, 3, torch.float32, where).add(tokens([60, 40], [0, 0]), FOREVER)
        for where in ("memory", "host")
    )
    ids = torch.tensor([[7, 2], [2, 5]])[:, None, None].expand(2, 4, 1, 2)
    retrieved = torch.tensor([[True, True], [True, False]])[:, None, None].expand(2, 4, 1, 2)
    k, v, local_ids = host.taken(1, ids, retrieved)
    assert k.shape[2] == v.shape[2] == 2
    whole_k, whole_v, same_ids = memory.taken(1, ids, retrieved)
    assert torch.equal(same_ids, ids)
    for row, query in ((0, 0), (0, 1), (1, 0)):
        here, there = local_ids[row, 0, 0, query], ids[row, 0, 0, query]
        assert torch.equal(k[row, :, here], whole_k[row, :, there])
        assert torch.equal(v[row, :, here], whole_v[row, :, there])


def test_a_graph_leads_back_into_a_bank_on_the_host() -> None:
    new = tokens([6], [0])
    k = tuple(x.clone().requires_grad_() for x in new.k)
    bank = ChunkBank.empty(empty_kv(LAYERS, (1, HEADS, WIDTH), torch.empty(0)), 3, torch.float32, "host")
    bank = bank.add(KV(k, new.v, new.used_B), FOREVER)
    ids, retrieved = torch.ones(1, 4, 1, 1, dtype=torch.int64), torch.ones(1, 4, 1, 1, dtype=torch.bool)
    bank.taken(1, ids, retrieved)[0].sum().backward()
    assert k[1].grad is not None
    assert k[1].grad[0, 0, :, 0].tolist() == [0, 0, 0, 1, 1, 1]


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["retrieval(N=32,K=16,M=96,{})", "longmem(N=32,K=16,M=96,init=paper,{})"])
def test_a_bank_on_the_host_of_a_gpu_gives_what_one_in_its_memory_gives(name: str, tmp_path: Path) -> None:
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    tokens_BT, lengths_B = text(200, rows=3).cuda(), torch.tensor([200, 30, 131]).cuda()
    following_BT, results = text(60, rows=3, seed=1).cuda(), []
    for where in ("memory", "host"):
        method = contextlab.load(name.format(f"stored_in={where}"), backbone="tiny-llama", device="cuda")
        state, logprobs = method.read(method.start(3), tokens_BT, lengths_B)
        state.save(tmp_path / where)
        loaded = method.load_state(tmp_path / where).to("cuda").where(lengths_B > 50, state).index([0, 1, 2])
        for kept in (state, loaded):
            results.append((logprobs, method.read(kept, following_BT)[1]))
            bank = kept.bank
            assert bank.kv.k[0].device.type == ("cpu" if where == "host" else "cuda")
            assert bank.mean.k[0].device.type == "cuda"
        if where == "host":
            assert state.bank.kv.k[0].is_pinned()
    for other in results[1:]:
        for ours, theirs in zip(results[0], other, strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("settings", ["stored_in=disk", "index=faiss"])
@pytest.mark.parametrize("name", ["retrieval(N=32,K=16,{})", "longmem(N=32,K=16,init=paper,{})"])
def test_where_a_bank_is_and_what_searches_it_changes_no_log_probability(name: str, settings: str) -> None:
    tokens_BT = text(200, rows=2)
    ours, other = (
        read(contextlab.load(name.format(settings_text), backbone="tiny-llama", device="cpu"), tokens_BT)
        for settings_text in ("csz=4", f"csz=4,{settings}")
    )
    torch.testing.assert_close(ours, other, atol=1e-5, rtol=1e-5)
