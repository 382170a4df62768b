from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from contextlab import load
from contextlab.attention import KV, empty_kv
from contextlab.errors import UserError
from contextlab.kernels.joint_memory_attention.reference import gather
from contextlab.methods.longmem.bank import add
from contextlab.methods.longmem.config import LongMemConfig
from contextlab.methods.parts.banks import ChunkBank


def empty(rows: int, heads: int, width: int, config: Any) -> Any:
    dtype = getattr(torch, config.storage_dtype)
    return ChunkBank.empty(empty_kv(1, (rows, heads, width), torch.empty(0)), config.csz, dtype)


def added(bank: Any, k_BKTD: Tensor, v_BKTD: Tensor, lengths: Any, config: Any) -> Any:
    return add(bank, KV((k_BKTD,), (v_BKTD,), torch.tensor(lengths)), config)


def split_heads(x_BTC: Tensor, heads: int) -> Any:
    return x_BTC.unflatten(-1, (heads, -1)).transpose(1, 2)


@pytest.mark.parametrize("name", ["r1_basic", "r2_batch_and_eviction", "r3_too_few_chunks_quirk"])
def test_replays_the_released_bank(fixture: Any, name: str) -> None:
    description, arrays = fixture(f"longmem_retrieval/{name}")
    hyper = description["hyper"]
    heads, take = hyper["heads"], hyper["n_chunks_retrieved"]
    config = LongMemConfig(
        M=hyper["memory_size"],
        K=hyper["k"],
        csz=hyper["chunk_size"],
        bank_scope="shared",
        eviction="official_two_step",
    )
    rows = hyper["segments"][0][0]
    bank = empty(rows, heads, hyper["head_dim"], config)
    for step, trace in enumerate(description["trace"]):
        if f"s{step}.query" in arrays:
            q_BHTD = split_heads(arrays[f"s{step}.query"].transpose(0, 1), heads)
            ids, present = bank.search(0, q_BHTD, take)
            expected = arrays[f"s{step}.chunk_ids"].view(heads, -1, rows, take).permute(2, 0, 1, 3)
            real = arrays[f"s{step}.scores"].view(heads, -1, rows, take).permute(2, 0, 1, 3).isfinite()
            assert torch.equal(present, real)
            assert torch.equal(ids[present], expected[real])
            kept = present.repeat_interleave(config.csz, -1)
            for got, name_ in zip(bank.tokens(0), ("ret_k", "ret_v"), strict=True):
                retrieved = arrays[f"s{step}.{name_}"].unflatten(0, (rows, heads))
                assert torch.equal(gather(got, ids)[kept], retrieved[kept])
                assert (retrieved[~kept] == 0).all()
        k, v = (split_heads(arrays[f"s{step}.{name_}"], heads) for name_ in ("add_k", "add_v"))
        bank = added(bank, k, v, [k.shape[2]] * rows, config)
        assert bank.count_B.tolist() == [trace["dstore_chunks"]] * rows
    torch.testing.assert_close(bank.mean.k[0][0], arrays["final.index"], atol=1e-6, rtol=0)


def grow(config: Any, lengths: Any, rows: int = 2) -> Any:
    """A bank of one-number keys that count tokens, added segment by segment."""
    bank = empty(rows, 1, 1, config)
    read = torch.zeros(rows, dtype=torch.int64)
    for lengths_B in lengths:
        span = torch.arange(int(max(lengths_B)))
        k = (read[:, None] + span).float()[:, None, :, None]
        bank = added(bank, k, -k, lengths_B, config)
        read += torch.tensor(lengths_B)
    return bank


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=6), st.integers(1, 6))
def test_fifo_keeps_the_newest_chunks_in_order_row_by_row(steps: Any, capacity: Any) -> None:
    config = LongMemConfig(csz=2, K=2, M=2 * capacity)
    bank = grow(config, [(2 * a, 2 * b) for a, b in steps])
    for row in range(2):
        chunks = sum(step[row] for step in steps)
        tokens = list(range(2 * max(0, chunks - capacity), 2 * chunks))
        kept = int(bank.count_B[row])
        k_BKncD, v_BKncD = bank.tokens(0)
        assert k_BKncD[row, 0, :kept].flatten().tolist() == tokens
        assert v_BKncD[row, 0, :kept].flatten().tolist() == [-token for token in tokens]
        assert bank.mean.k[0][row, 0, :kept, 0].tolist() == [token + 0.5 for token in tokens[::2]]


def test_tokens_behind_the_last_whole_chunk_are_dropped() -> None:
    config = LongMemConfig(csz=4, K=4, M=64)
    assert grow(config, [(7, 3)]).count_B.tolist() == [1, 0]
    k_BKncD, _ = grow(config, [(7, 3), (5, 5)]).tokens(0)
    assert k_BKncD[0].flatten().tolist() == [0, 1, 2, 3, 7, 8, 9, 10]
    assert k_BKncD[1, 0, 0].flatten().tolist() == [3, 4, 5, 6]


def test_rows_of_a_shared_bank_are_equal_and_chunks_may_straddle_rows() -> None:
    bank = grow(LongMemConfig(csz=2, K=2, M=64, bank_scope="shared"), [(3, 3)])
    assert bank.count_B.tolist() == [3, 3]
    k_BKncD, _ = bank.tokens(0)
    assert torch.equal(k_BKncD[0], k_BKncD[1])
    assert k_BKncD[0, 0].flatten().tolist() == [0, 1, 2, 0, 1, 2]


def test_two_step_eviction_never_fills_the_bank() -> None:
    config = LongMemConfig(csz=2, K=2, M=16, eviction="official_two_step")
    counts = [int(grow(config, [(4, 4)] * n).count_B[0]) for n in range(1, 9)]
    assert counts == [2, 4, 6, 4, 6, 4, 6, 4]


@pytest.mark.parametrize(
    "settings",
    ["N=16,M=64,csz=4,K=4,storage_dtype=int8", "N=8,M=4,csz=4,K=4", "N=48,M=128,csz=4,K=4,storage_dtype=int4"],
)
def test_two_step_eviction_holds_no_more_than_m_also_in_few_bits(settings: str, tmp_path: Path) -> None:
    method = load(f"longmem({settings},eviction=official_two_step)", backbone="tiny-llama")
    state, _ = method.read(method.start(), torch.randint(0, 256, (1, 600)), logprobs=False)
    assert 0 <= int(state.bank.used_B) <= method.config.M
    assert state.nbytes == method.formula().state_bytes(600)
    state.save(tmp_path / "state")
    assert torch.equal(method.load_state(tmp_path / "state").bank.used_B, state.bank.used_B)


def test_settings_that_do_not_fit_are_one_sentence() -> None:
    with pytest.raises(UserError, match="multiples of the chunk size"):
        LongMemConfig(K=6, csz=4)
    with pytest.raises(UserError, match="last_residual=raw"):
        LongMemConfig(init="identity", last_residual="normed")
    with pytest.raises(UserError, match="did you mean 'csz'"):
        LongMemConfig.parse({"cz": 4})
