from __future__ import annotations

import types
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contextlab.attention import KV, Layout
from contextlab.kernels.eva_chunk_compress import chunk_means, eva_chunk_compress
from contextlab.methods.evalm.config import EVALMConfig
from contextlab.methods.evalm.reader import RollUp
from contextlab.methods.evalm.summary import Summary, query_factor

ROWS, HEADS, KV_HEADS, WIDTH, CHUNK = 2, 4, 2, 8, 4


def built(**options: Any) -> Any:
    return Summary(HEADS, KV_HEADS, WIDTH, EVALMConfig(c=CHUNK, **options)).double()


def case(chunks: int = 3) -> Any:
    k, v = torch.randn(2, ROWS, KV_HEADS, chunks * CHUNK, WIDTH, dtype=torch.float64)
    return torch.randn(ROWS, KV_HEADS, chunks, WIDTH, dtype=torch.float64), k, v


def test_at_first_maps_are_the_identity() -> None:
    q_mean, k, v = case()
    key, value = built()(q_mean, k, v)
    torch.testing.assert_close(key, chunk_means(k, CHUNK, KV_HEADS))
    torch.testing.assert_close(value, eva_chunk_compress(q_mean, key, k, v, chunk=CHUNK, scale=WIDTH**-0.5))


def test_learned_pooling_starts_as_the_mean_and_turns_to_what_its_vector_points_at() -> None:
    _, k, v = case()
    summary = built(pooling="learned")
    key, value = summary(None, k, v)
    torch.testing.assert_close(key, chunk_means(k, CHUNK, KV_HEADS))
    torch.testing.assert_close(value, chunk_means(v, CHUNK, KV_HEADS))
    with torch.no_grad():
        summary.pooling_KD[:, 0] = 1e4
    key, value = summary(None, k, v)
    best = k.unflatten(2, (-1, CHUNK))[..., 0].argmax(-1)[..., None, None].expand(-1, -1, -1, 1, WIDTH)
    torch.testing.assert_close(key, k.unflatten(2, (-1, CHUNK)).gather(3, best)[:, :, :, 0])
    torch.testing.assert_close(value, v.unflatten(2, (-1, CHUNK)).gather(3, best)[:, :, :, 0])


def test_qk_norms_the_means() -> None:
    q_mean, k, v = case()
    key, _ = built(adaptive="qk")(q_mean, k, v)
    torch.testing.assert_close(key.mean(-1), torch.zeros(ROWS, KV_HEADS, 3, dtype=torch.float64))
    torch.testing.assert_close(key.var(-1, correction=0), torch.ones_like(key[..., 0]), atol=1e-3, rtol=0)


def test_every_key_head_has_its_own_maps() -> None:
    q_mean, k, v = case()
    summary = built()
    before = summary(q_mean, k, v)
    with torch.no_grad():
        summary.key_map.weight_KDD[1].mul_(2)
        summary.value_map_KDD[0].mul_(3)
    key, value = summary(q_mean, k, v)
    assert torch.equal(key[:, 0], before[0][:, 0])
    torch.testing.assert_close(key[:, 1], before[0][:, 1] * 2)
    torch.testing.assert_close(value[:, 0], before[1][:, 0] * 3)


def test_noise_moves_values_and_not_keys() -> None:
    q_mean, k, v = case()
    summary = built()
    plain, drawn = summary(q_mean, k, v), summary(q_mean, k, v, torch.randn_like(q_mean))
    assert torch.equal(plain[0], drawn[0])
    assert not torch.allclose(plain[1], drawn[1])


@pytest.mark.parametrize("bias", [None, -2.0])
def test_heads_start_with_the_bias_of_the_settings(bias: float | None) -> None:
    expected = float("-inf") if bias is None else bias
    assert built(remote_bias=bias).remote_bias_H.tolist() == [expected] * HEADS


@pytest.mark.parametrize("scaled_by_the_model", [True, False])
def test_queries_are_unscaled_however_attention_receives_them(scaled_by_the_model: bool) -> None:
    q = torch.randn(WIDTH)
    received, scale = (q * WIDTH**-0.5, 1.0) if scaled_by_the_model else (q, WIDTH**-0.5)
    torch.testing.assert_close(received * query_factor(scale, WIDTH), q)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 9)), min_size=1, max_size=3), st.integers(1, 5))
def test_chunks_that_end_in_a_block_by_hand(rows: Any, chunk: Any) -> None:
    """Rows at different positions read different numbers of tokens; token i of a row is the number i, its query too."""
    read, new = (torch.tensor(x) for x in zip(*rows, strict=True))
    used = read.clamp(max=12) // chunk * chunk + read % chunk
    slots, length = int(used.max()), 9
    local = torch.full((len(rows), slots + length), -1)
    for row, (before, fresh) in enumerate(rows):
        local[row, : int(used[row])] = torch.arange(before - int(used[row]), before)
        local[row, slots : slots + fresh] = torch.arange(before, before + fresh)
    none, no_chunks = torch.zeros(len(rows), 1, slots, 1), torch.zeros(len(rows), 1, int((read // chunk).max()), 1)
    chunks = KV((no_chunks,), (no_chunks,), read // chunk)
    state = types.SimpleNamespace(length_B=read, kv=KV((none,), (none,), used), chunks=chunks)
    roll_up = RollUp(state, Layout(used[:, None] + torch.arange(length)), new, chunk)
    assert roll_up.level == (len({*zip((read // chunk).tolist(), roll_up.done_B.tolist(), strict=True)}) == 1)
    queries = local[:, slots:].double()[:, None, :, None]
    opened = [sum(range(before - before % chunk, before)) for before, _ in rows]
    sums, left = roll_up.sums(queries, torch.tensor(opened).double()[:, None, None])
    before_BKnD = torch.zeros(len(rows), 1, int((read // chunk).max()), 1, dtype=torch.float64)
    stored = roll_up.stored(sums, before_BKnD)
    assert not before_BKnD.any()
    assert stored.shape[2] == roll_up.slots == int(((read + new) // chunk).max())
    for row, (before, fresh) in enumerate(rows):
        first, after = before // chunk, (before + fresh) // chunk
        assert int(roll_up.done_B[row]) == after - first
        tokens = local[row].gather(0, roll_up.slots_BS[row, : (after - first) * chunk])
        assert tokens.tolist() == list(range(first * chunk, after * chunk))
        expected = [sum(range(n * chunk, (n + 1) * chunk)) for n in range(first, after)]
        assert stored[row, 0, first:after, 0].tolist() == expected
        assert float(left[row]) == sum(range(after * chunk, before + fresh))
