from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import TOLERANCE, assert_close, case, gradients
from torch import Tensor
from torch._subclasses import FakeTensorMode

from contextlab.accounting.flops import count
from contextlab.attention import sdpa
from contextlab.kernels import retrieved
from contextlab.kernels.dispatch import forced
from contextlab.kernels.joint_memory_attention import (
    blocked,
    fuse_memory,
    joint_memory_attention,
    local_attention,
    ops,
    reference,
)

LEAVES = ("q", "k", "v", "q_memory", "bank_k", "bank_v", "gate")
SIZES = {
    "one": {"queries": 1},
    "generation": {"queries": 1, "keys": 100, "heads": 4, "kv_heads": 2, "rows": 2},
    "continued": {"queries": 20, "keys": 63, "width": 20, "heads": 4, "kv_heads": 2},
    "rows": {"queries": 63, "rows": 2, "width": 48, "slopes": False},
    "hundred": {"queries": 100, "width": 33, "chunk": 3, "take": 30, "heads": 2, "kv_heads": 2},
    "odd": {"queries": 257, "take": 5, "chunk": 2, "slopes": False},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("size", SIZES)
def test_forward_and_every_gradient_equal_float64(form: str, size: str, dtype: torch.dtype, device: str) -> None:
    if form == "reference" and dtype == torch.float16:
        pytest.skip("the reference computes in the type it is given")
    example = case(**SIZES[size], dtype=dtype, device=device)
    truth = example.truth()
    out, expected = example.run(), truth.expected()
    assert out.dtype == dtype
    assert_close(out, expected, dtype, "out")
    pairs = zip(gradients(out, example.leaves), gradients(expected, truth.leaves), LEAVES, strict=True)
    for gradient, expected, name in pairs:
        assert_close(gradient, expected, dtype, name)


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 40),
    st.integers(0, 30),
    st.integers(1, 2),
    st.sampled_from([(1, 1), (4, 2), (3, 1)]),
    st.integers(1, 33),
    st.integers(1, 6),
    st.integers(1, 5),
    st.integers(1, 4),
    st.booleans(),
)
def test_blocks_equal_float64_in_any_shape(
    queries: Any, before: Any, rows: Any, heads: Any, width: Any, chunks: Any, chunk: Any, take: Any, slopes: Any
) -> None:
    saved = blocked.BIAS_ELEMENTS, retrieved.GATHERED_ELEMENTS
    blocked.BIAS_ELEMENTS = retrieved.GATHERED_ELEMENTS = 64
    try:
        shape = {"rows": rows, "heads": heads[0], "kv_heads": heads[1], "width": width, "chunks": chunks}
        example = case(queries, queries + before, chunk=chunk, take=take, slopes=slopes, **shape).truth()
        with forced("torch"):
            out = example.run()
        assert_close(out, example.expected(), torch.float64, "out")
    finally:
        blocked.BIAS_ELEMENTS, retrieved.GATHERED_ELEMENTS = saved


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_slopes_are_not_rounded_to_the_keys_type(dtype: torch.dtype) -> None:
    """At a distance of a thousand tokens, steps of one token are smaller than the spacing of bfloat16."""
    q, k, v = (torch.randn(1, 2, t, 8).to(dtype) for t in (3, 1500, 1500))
    slopes = torch.tensor([0.004, 0.002])
    with forced("torch"):
        out = local_attention(q, k, v, scale=0.01, slopes_H=slopes)
    expected = reference.local_attention(q.double(), k.double(), v.double(), slopes.double(), 0.01)
    error = (out.double() - expected).pow(2).mean() / expected.pow(2).mean()
    assert error.sqrt() < TOLERANCE[dtype]


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 40), (40, 40), (39, 40)])
def test_blocks_give_plain_attentions_own_numbers(queries: int, keys: int) -> None:
    """Without slopes it is one call of torch's fused attention, so that a method may use either."""
    q, (k, v) = torch.randn(2, 4, queries, 8), (torch.randn(2, 2, keys, 8) for _ in range(2))
    behind = torch.arange(keys) > torch.arange(keys)[keys - queries :, None]
    mask = None if queries == keys else torch.zeros(behind.shape).masked_fill(behind, float("-inf"))
    with forced("torch"):
        assert torch.equal(local_attention(q, k, v, scale=0.3), sdpa(q, k, v, mask, 0.3))


def heads_of(x_TBC: Tensor, weight: Any, count: int) -> Any:
    return (x_TBC @ weight.T).unflatten(-1, (count, -1)).permute(1, 2, 0, 3)


def run_fixture(hyper: Any, arrays: Any, leaves: Any) -> Any:
    """The released module's inputs as a bank in which query t owns chunk t."""
    rows, count = hyper["B"], hyper["heads"]
    q, k, v = (heads_of(leaves["x"], leaves[name], count) for name in ("wq", "wk", "wv"))
    ids = torch.arange(q.shape[2]).expand(rows, count, -1)[..., None]
    slopes = (arrays["alibi"][0, :, 0, 1] - arrays["alibi"][0, :, 0, 0]).to(q.dtype)
    if hyper["K"]:
        bank = [leaves[name].unflatten(0, (rows, count)) for name in ("mem_k", "mem_v")]
        gate = leaves["gate_bias"]
    else:
        bank = [torch.zeros(rows, count, 0, 1, hyper["head_dim"], dtype=q.dtype)] * 2
        gate = torch.full((count,), 3.0, dtype=q.dtype)
    retrieved, scale = torch.full_like(ids, bool(hyper["K"]), dtype=torch.bool), hyper["head_dim"] ** -0.5
    out = joint_memory_attention(q, k, v, q, *bank, ids, retrieved, gate, scale=scale, slopes_H=slopes)
    return out.permute(2, 0, 1, 3).flatten(2) @ leaves["wo"].T


@pytest.mark.parametrize("name", ["a1_f64", "a2_f32", "a3_empty_memory_f64"])
def test_forward_and_gradients_equal_the_released_module(fixture: Any, form: str, name: str) -> None:
    description, arrays = fixture(f"longmem_attn/{name}")
    hyper = description["hyper"]
    if form == "triton" and hyper["dtype"] == "float64":
        arrays = {key: x.float() if x.is_floating_point() else x for key, x in arrays.items()}
    leaves = {
        key: tensor.clone().requires_grad_()
        for key, tensor in arrays.items()
        if not key.startswith("grad_") and key not in ("out", "alibi")
    }
    out = run_fixture(hyper, arrays, leaves)
    tolerance = 1e-9 if out.dtype == torch.float64 else 1e-5
    assert (out - arrays["out"]).abs().max() <= tolerance * arrays["out"].abs().max()
    (out * arrays["grad_out"]).sum().backward()
    compared = 0
    for key, leaf in leaves.items():
        expected = arrays.get(f"grad_{key}")
        if expected is not None and leaf.grad is not None:
            compared += 1
            assert (leaf.grad - expected).abs().max() <= tolerance * expected.abs().max().clamp(min=1), key
    assert compared == sum(key.startswith("grad_") for key in arrays) - 1


def test_the_joint_form_is_the_local_part_with_the_memory_fused_in(form: str, device: str) -> None:
    example = case(30, 41, heads=4, kv_heads=2, device=device)
    q, k, v, q_memory, bank_k, bank_v, gate = example.leaves
    local = local_attention(q, k, v, scale=example.scale, slopes_H=example.slopes)
    out = fuse_memory(local, q_memory, bank_k, bank_v, example.ids, example.retrieved, gate, scale=example.scale)
    assert torch.equal(out, example.run())
    nothing = ~example.retrieved.any(-1)
    assert nothing.any()
    assert torch.equal(out[nothing], local[nothing])


def test_the_gate_mixes_between_both_parts(form: str, device: str) -> None:
    example = case(9, device=device)
    q, k, v, *_ = example.leaves
    local = local_attention(q, k, v, scale=example.scale, slopes_H=example.slopes)
    outs = []
    for value in (-50.0, 0.0, 50.0):
        example.leaves[-1] = torch.full((2,), value, device=device)
        outs.append(example.run())
    torch.testing.assert_close(outs[0], local)
    torch.testing.assert_close(outs[1], (outs[0] + outs[2]) / 2)


def test_missing_chunks_have_no_influence_and_order_has_none(form: str, device: str) -> None:
    example = case(13, device=device)
    out = example.run()
    example.ids, example.retrieved = example.ids.flip(-1), example.retrieved.flip(-1)
    torch.testing.assert_close(example.run(), out)
    missing = torch.zeros_like(example.retrieved[..., :2])
    example.retrieved, example.ids = (
        torch.cat((missing, example.retrieved), -1),
        torch.cat((missing.long() - 7, example.ids), -1),
    )
    torch.testing.assert_close(example.run(), out)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a look at the ids would wait for the GPU")
@pytest.mark.parametrize("wrong", [9, -1, 10**12, -(10**12)])
def test_a_retrieved_chunk_that_the_bank_lacks_is_refused(form: str, wrong: int) -> None:
    example = case(5)
    example.ids[0, 1, 2, 0], example.retrieved[0, 1, 2, 0] = wrong, False
    example.run()
    example.retrieved[0, 1, 2, 0] = True
    sentence = f"ids_BHTm has {wrong} where retrieved_BHTm is true, in a bank of 9 chunks: correct one of them."
    with pytest.raises(ValueError, match=sentence):
        example.run()
    q, _, _, q_memory, bank_k, bank_v, gate = example.leaves
    with pytest.raises(ValueError, match="in a bank of 0 chunks"):
        fuse_memory(q, q_memory, bank_k[:, :, :0], bank_v[:, :, :0], example.ids, example.retrieved, gate, scale=1.0)


def test_a_compiled_call_refuses_it_too() -> None:
    example = case(5)
    compiled = torch.compile(example.run, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(), example.run())
    example.ids[0, 0, 1], example.retrieved[0, 0, 1] = 9, True
    with pytest.raises(ValueError, match="in a bank of 9 chunks"):
        compiled()


@pytest.mark.parametrize("wrong", [9, -1, 10**12])
def test_an_unchecked_id_out_of_range_counts_as_not_retrieved(form: str, wrong: int, device: str) -> None:
    """As on a GPU: no form reads outside of the bank, forward or backward."""
    example = case(5, device=device)
    local, _, _, q, bank_k, bank_v, gate = (x.detach() for x in example.leaves)
    ids, retrieved = example.ids.clone(), example.retrieved.clone()
    ids[0, :, 1:, 0], retrieved[0, :, 1:, 0] = 4, True
    outside = torch.zeros_like(retrieved)
    outside[0, :, 2:4, 0] = outside[0, 1, 4] = True
    wrong_ids, without = ids.masked_fill(outside, wrong), retrieved & ~outside

    def run(ids: Any, retrieved: Any) -> Any:
        inputs = (local, q, bank_k, bank_v, ids, retrieved, gate)
        if form == "reference":
            return (reference.fuse_memory(*inputs, 0.3),)
        module = ops._form(q, bank_k)
        out, *statistics = module.memory_forward(*inputs, 0.3)
        return (out, *statistics, *module.memory_backward(torch.ones_like(out), *inputs, *statistics, 0.3, True))

    for result, other in zip(run(wrong_ids, retrieved | outside), run(ids, without), strict=True):
        assert torch.equal(result, other)


@pytest.mark.parametrize("empty", ["chunks", "take"])
def test_an_empty_bank_leaves_the_local_part(form: str, empty: str, device: str) -> None:
    example = case(5, device=device, **{"chunks": 1, "take": 1, empty: 1})
    q, k, v, q_memory, bank_k, bank_v, gate = example.leaves
    local = local_attention(q, k, v, scale=1.0)
    if empty == "chunks":
        bank_k, bank_v, example.retrieved = bank_k[:, :, :0], bank_v[:, :, :0], torch.zeros_like(example.retrieved)
    else:
        example.ids, example.retrieved = example.ids[..., :0], example.retrieved[..., :0]
    out = fuse_memory(local, q_memory, bank_k, bank_v, example.ids, example.retrieved, gate, scale=1.0)
    assert torch.equal(out, local)


def test_one_token_after_another_equals_all_at_once(form: str, device: str) -> None:
    example = case(6, width=24, device=device)
    q, k, v, q_memory, bank_k, bank_v, gate = example.leaves
    together = example.run()
    for t in range(6):
        single = joint_memory_attention(
            *(q[:, :, t : t + 1], k[:, :, : t + 1], v[:, :, : t + 1], q_memory[:, :, t : t + 1], bank_k, bank_v),
            *(example.ids[:, :, t : t + 1], example.retrieved[:, :, t : t + 1], gate),
            scale=example.scale,
            slopes_H=example.slopes,
        )
        torch.testing.assert_close(single, together[:, :, t : t + 1])


def test_a_bank_of_another_type_and_of_any_steps_is_read(form: str, device: str) -> None:
    example = case(20, width=16, device=device)
    wide = [torch.randn(1, 1, 9, 4, 20, device=device).half() for _ in range(2)]
    example.leaves[4:6] = [x[..., 2:18] for x in wide]
    narrow = example.run()
    example.leaves[4:6] = [x[..., 2:18].contiguous().float() for x in wide]
    torch.testing.assert_close(narrow, example.run())
    example.leaves[4:6] = [x[..., 2:18].contiguous().float().transpose(2, 3).contiguous().transpose(2, 3) for x in wide]
    torch.testing.assert_close(narrow, example.run())


def test_gates_and_slopes_are_read_with_any_step(form: str, device: str) -> None:
    example = case(9, heads=4, kv_heads=2, device=device)
    out = example.run()
    expected = gradients(out, example.leaves)
    wide = torch.stack((example.leaves[-1].detach(), torch.full((4,), torch.nan, device=device)), 1)
    example.leaves[-1] = wide[:, 0].requires_grad_()
    example.slopes = torch.stack((example.slopes, torch.full((4,), torch.nan, device=device)), 1)[:, 0]
    assert torch.equal(example.run(), out)
    for gradient, other in zip(gradients(example.run(), example.leaves), expected, strict=True):
        torch.testing.assert_close(gradient, other)


@pytest.mark.parametrize("steps", [(0, 2, 1, 3), (0, 3, 1, 2), (3, 2, 1, 0)])
def test_gradients_reach_a_bank_however_the_outputs_is_stored(
    form: str, steps: tuple[int, int, int, int], device: str
) -> None:
    example = case(5, heads=3, chunk=1, take=1, width=4, device=device)
    out = example.run()
    dout = torch.randn(out.shape, device=device)
    stored = dout.permute(steps).contiguous().permute([steps.index(i) for i in range(4)])
    grads, expected = (torch.autograd.grad(out, example.leaves, x, retain_graph=True) for x in (stored, dout))
    for gradient, other in zip(grads, expected, strict=True):
        torch.testing.assert_close(gradient, other)


@pytest.mark.parametrize("shape", [(0, 4, 3, 8), (2, 0, 3, 8), (2, 4, 0, 8), (2, 4, 3, 0)])
@pytest.mark.parametrize("older", [0, 2])
def test_nothing_in_is_nothing_out(form: str, shape: tuple[int, int, int, int], older: int, device: str) -> None:
    rows, _, queries, width = shape
    k, v = (torch.randn(rows, 2, queries + older, width, device=device) for _ in range(2))
    assert local_attention(torch.randn(shape, device=device), k, v, scale=1.0).shape == shape


def test_the_bank_gets_a_gradient_only_where_it_needs_one(form: str, device: str) -> None:
    example = case(7, device=device)
    example.leaves[4:6] = [x.detach() for x in example.leaves[4:6]]
    rest = [leaf for leaf in example.leaves if leaf.requires_grad]
    truth = case(7, device=device)
    expected = gradients(truth.run(), truth.leaves)
    for gradient, want in zip(gradients(example.run(), rest), (*expected[:4], expected[6]), strict=True):
        torch.testing.assert_close(gradient, want)


@pytest.mark.parametrize("named", ["reference", "torch"])
def test_gradcheck(named: str) -> None:
    example = case(3, 5, heads=2, kv_heads=1, width=2, chunks=3, chunk=2, take=2).truth()

    def run(*leaves: Any) -> Any:
        example.leaves = list(leaves)
        with forced(named):
            return example.run()

    assert torch.autograd.gradcheck(run, tuple(example.leaves))


def test_repeated_runs_are_bitwise_equal(form: str, device: str) -> None:
    example = case(63, rows=2, device=device)
    first, second = example.run(), example.run()
    assert torch.equal(first, second)
    for gradient, other in zip(
        gradients(first, example.leaves[:4]), gradients(second, example.leaves[:4]), strict=True
    ):
        assert torch.equal(gradient, other)


def test_compiles_into_one_graph_with_its_gradients() -> None:
    example = case(12, 17)

    def run(*leaves: Any) -> Any:
        *tensors, gate = leaves
        return joint_memory_attention(
            *tensors, example.ids, example.retrieved, gate, scale=0.25, slopes_H=example.slopes
        )

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    eager, out = run(*example.leaves), compiled(*example.leaves)
    torch.testing.assert_close(out, eager)
    for gradient, other in zip(gradients(out, example.leaves), gradients(eager, example.leaves), strict=True):
        torch.testing.assert_close(gradient, other)


def test_shapes_are_known_without_data() -> None:
    with FakeTensorMode():
        example = case(1, 6, heads=4, kv_heads=2)
        out = example.run()
        assert out.shape == (1, 4, 1, 16)
        assert [g.shape for g in torch.autograd.grad(out.sum(), example.leaves)] == [x.shape for x in example.leaves]


@pytest.mark.parametrize("into_bank", [True, False])
def test_flops_are_counted_from_what_is_visible(into_bank: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    example = case(10, 15, rows=2, heads=4, kv_heads=2, width=16, chunk=3)
    if not into_bank:
        example.leaves[4:6] = [x.detach() for x in example.leaves[4:6]]
    local = 2 * 4 * sum(5 + t + 1 for t in range(10)) * 4 * 16
    memory = int(example.retrieved.sum()) * 3 * 4 * 16
    monkeypatch.setenv("CONTEXTLAB_KERNELS", "torch")
    out, forward = count(example.run)
    assert forward == local + memory
    _, backward = count(lambda: out.sum().backward())
    assert backward == 2 * local + (2 if into_bank else 1) * memory


def test_memory_attention_is_attention_over_the_gathered_tokens() -> None:
    example = case(7, rows=2, heads=4, kv_heads=2).truth()
    _, _, _, q, bank_k, bank_v, _ = example.leaves
    retrieved = torch.ones_like(example.retrieved)
    ids = example.ids % 9
    out = reference.memory_attention(q, bank_k, bank_v, ids, retrieved, 0.5)
    for b, h, t in [(0, 0, 0), (1, 3, 6), (0, 2, 3)]:
        keys, values = (bank[b, h // 2, ids[b, h, t]].flatten(0, 1) for bank in (bank_k, bank_v))
        torch.testing.assert_close(out[b, h, t], (keys @ q[b, h, t] * 0.5).softmax(0) @ values)


def test_local_attention_is_torchs() -> None:
    example = case(20, heads=4, kv_heads=2).truth()
    q, k, v, *_ = example.leaves
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True, scale=0.2)
    torch.testing.assert_close(reference.local_attention(q, k, v, None, 0.2), expected)
    with forced("torch"):
        torch.testing.assert_close(local_attention(q, k, v, scale=0.2), expected)
