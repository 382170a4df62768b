from __future__ import annotations

import pytest
import torch

from contextlab.kernels.joint_memory_attention import fuse, joint_memory_attention, memory_attention

MEMORY = ["longmem_attn/a1_f64", "longmem_attn/a2_f32"]


def heads(x_TBC, weight, count):
    return (x_TBC @ weight.T).unflatten(-1, (count, -1)).permute(1, 2, 0, 3)


def causal(alibi_BH1T):
    length = alibi_BH1T.shape[-1]
    hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
    return alibi_BH1T.expand(-1, -1, length, -1).masked_fill(hidden, float("-inf"))


def as_bank(mem, rows, count):
    """Retrieved tokens of every query as a bank in which query t owns chunk t."""
    return mem.unflatten(0, (rows, count))


def run(hyper, arrays, leaves):
    rows, count = hyper["B"], hyper["heads"]
    q, k, v = (heads(leaves["x"], leaves[name], count) for name in ("wq", "wk", "wv"))
    length = q.shape[2]
    if hyper["K"]:
        bank_k, bank_v = (as_bank(leaves[name], rows, count) for name in ("mem_k", "mem_v"))
        ids = torch.arange(length).expand(rows, count, -1)[..., None]
        found = torch.ones_like(ids, dtype=torch.bool)
        gate = leaves["gate_bias"]
    else:
        bank_k = bank_v = torch.zeros(rows, count, 1, 1, hyper["head_dim"], dtype=q.dtype)
        ids = torch.zeros(rows, count, length, 1, dtype=torch.int64)
        found, gate = torch.zeros_like(ids, dtype=torch.bool), torch.full((count,), 3.0, dtype=q.dtype)
    scale = hyper["head_dim"] ** -0.5
    out = joint_memory_attention(q, k, v, q, bank_k, bank_v, ids, found, gate, causal(arrays["alibi"]), scale)
    return out.permute(2, 0, 1, 3).flatten(2) @ leaves["wo"].T


@pytest.mark.parametrize("name", [*MEMORY, "longmem_attn/a3_empty_memory_f64"])
def test_forward_and_gradients_equal_the_released_module(fixture, name):
    description, arrays = fixture(name)
    hyper = description["hyper"]
    leaves = {
        key: tensor.clone().requires_grad_()
        for key, tensor in arrays.items()
        if not key.startswith("grad_") and key not in ("out", "alibi")
    }
    out = run(hyper, arrays, leaves)
    tolerance = 1e-9 if hyper["dtype"] == "float64" else 1e-5
    assert (out - arrays["out"]).abs().max() <= tolerance * arrays["out"].abs().max()
    (out * arrays["grad_out"]).sum().backward()
    for key, leaf in leaves.items():
        expected = arrays.get(f"grad_{key}")
        if expected is not None:
            assert leaf.grad is not None, key
            assert (leaf.grad - expected).abs().max() <= tolerance * expected.abs().max().clamp(min=1), key


def random_case(rows=2, query_heads=4, kv_heads=2, length=7, width=8, chunks=5, chunk=3, take=2):
    generator = torch.Generator().manual_seed(1)
    q, k, v, bank_k, bank_v = (
        torch.randn(*shape, generator=generator, dtype=torch.float64)
        for shape in (
            (rows, query_heads, length, width),
            (rows, kv_heads, length, width),
            (rows, kv_heads, length, width),
            (rows, kv_heads, chunks, chunk, width),
            (rows, kv_heads, chunks, chunk, width),
        )
    )
    ids = torch.randint(chunks, (rows, query_heads, length, take), generator=generator)
    return q, k, v, bank_k, bank_v, ids, torch.ones_like(ids, dtype=torch.bool)


def test_memory_attention_is_attention_over_the_gathered_tokens():
    q, _, _, bank_k, bank_v, ids, found = random_case()
    out = memory_attention(q, bank_k, bank_v, ids, found, 0.5)
    for b, h, t in [(0, 0, 0), (1, 3, 6), (0, 2, 3)]:
        keys, values = (bank[b, h // 2, ids[b, h, t]].flatten(0, 1) for bank in (bank_k, bank_v))
        expected = (keys @ q[b, h, t] * 0.5).softmax(0) @ values
        torch.testing.assert_close(out[b, h, t], expected)


def test_missing_chunks_have_no_influence():
    q, _, _, bank_k, bank_v, ids, found = random_case()
    found[..., 1] = False
    short = memory_attention(q, bank_k, bank_v, ids[..., :1], found[..., :1], 0.5)
    torch.testing.assert_close(memory_attention(q, bank_k, bank_v, ids, found, 0.5), short)


def test_order_of_retrieved_chunks_does_not_matter():
    q, _, _, bank_k, bank_v, ids, found = random_case(take=3)
    turned = memory_attention(q, bank_k, bank_v, ids.flip(-1), found, 0.5)
    torch.testing.assert_close(memory_attention(q, bank_k, bank_v, ids, found, 0.5), turned)


def test_gate_mixes_between_both_branches_and_is_bypassed_without_memory():
    local, memory = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 3, 4)
    found = torch.tensor([[[True, True, False]] * 2])
    open_gate, half, shut = (fuse(local, memory, torch.full((2,), g), found) for g in (50.0, 0.0, -50.0))
    torch.testing.assert_close(open_gate[:, :, :2], memory[:, :, :2])
    torch.testing.assert_close(half[:, :, :2], (local + memory)[:, :, :2] / 2)
    torch.testing.assert_close(shut, local)
    assert torch.equal(open_gate[:, :, 2], local[:, :, 2])


def test_gradients_are_finite_where_nothing_is_found():
    q, k, v, bank_k, bank_v, ids, found = random_case()
    found[0] = False
    leaves = [x.requires_grad_() for x in (q, k, v, bank_k, bank_v)]
    gate = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(7, 7, dtype=torch.float64).masked_fill(torch.ones(7, 7).triu(1).bool(), float("-inf"))
    joint_memory_attention(q, k, v, q, bank_k, bank_v, ids, found, gate, bias, 0.3).sum().backward()
    assert all(leaf.grad is not None and leaf.grad.isfinite().all() for leaf in [*leaves, gate])


def test_gradcheck():
    q, k, v, bank_k, bank_v, ids, found = random_case(rows=1, query_heads=2, kv_heads=1, length=3, width=2)
    gate = torch.tensor([0.3, -0.4], dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(3, 3, dtype=torch.float64).masked_fill(torch.ones(3, 3).triu(1).bool(), -30.0)
    leaves = [x.requires_grad_() for x in (q, k, v, bank_k, bank_v)]

    def run_it(q, k, v, bank_k, bank_v, gate):
        return joint_memory_attention(q, k, v, q, bank_k, bank_v, ids, found, gate, bias, 0.7)

    assert torch.autograd.gradcheck(run_it, (*leaves, gate))
