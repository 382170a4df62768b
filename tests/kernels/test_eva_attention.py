from __future__ import annotations

from typing import Any

import pytest
import torch
from eva_cases import LEAVES, attention
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import assert_close, gradients
from torch._subclasses import FakeTensorMode

from contextlab.accounting.flops import count
from contextlab.kernels import part
from contextlab.kernels.buffers import in_rows
from contextlab.kernels.dispatch import forced
from contextlab.kernels.eva_attention import blocked, eva_attention
from contextlab.methods.evalm import CausalEVA

SIZES = {
    "one": {"queries": 1, "rows": 2},
    "generation": {"queries": 1, "keys": 100, "heads": 4, "kv_heads": 2, "rows": 2, "counts": False},
    "continued": {"queries": 20, "keys": 63, "width": 20, "heads": 4, "kv_heads": 2},
    "rows": {"queries": 63, "rows": 2, "width": 48, "chunk_bias": False},
    "windows": {"queries": 100, "width": 33, "window": 8, "chunks": 70},
    "overlap": {"queries": 100, "window": 48, "overlap": True, "heads": 3, "kv_heads": 3},
    "late": {"queries": 50, "keys": 130, "window": 32, "overlap": True, "heads": 4, "kv_heads": 2},
    "odd": {"queries": 257, "chunks": 0, "counts": False, "window": 100},
    "biased": {"queries": 30, "keys": 37, "bias": True, "heads": 4, "kv_heads": 2},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("size", SIZES)
def test_forward_and_every_gradient_equal_float64(form: str, size: str, dtype: torch.dtype, device: str) -> None:
    if form == "reference" and dtype == torch.float16:
        pytest.skip("the reference computes in the type it is given")
    example = attention(**SIZES[size], dtype=dtype, device=device)
    truth = example.truth()
    out, expected = example.run(), truth.expected()
    assert out.dtype == dtype
    assert_close(out, expected, dtype, "out")
    pairs = zip(gradients(out, example.leaves), gradients(expected, truth.leaves), LEAVES, strict=False)
    for gradient, expected, name in pairs:
        assert gradient.dtype == dtype
        assert_close(gradient, expected, dtype, name)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 40),
    st.integers(0, 30),
    st.sampled_from([(1, 1), (4, 2), (3, 1)]),
    st.integers(0, 7),
    st.sampled_from([None, 1, 5, 16]),
    st.booleans(),
    st.integers(0, 99),
)
def test_blocks_equal_float64_in_any_shape(
    queries: Any, older: Any, heads: Any, chunks: Any, window: Any, flag: Any, seed: Any
) -> None:
    shape = {"heads": heads[0], "kv_heads": heads[1], "chunks": chunks, "window": window}
    example = attention(
        queries, queries + older, **shape, counts=flag, overlap=flag and window is not None, seed=seed
    ).truth()
    blocked.QUERIES_AT_ONCE, saved = 7, blocked.QUERIES_AT_ONCE
    try:
        with forced("torch"):
            out = example.run()
            grads = gradients(out, example.leaves)
    finally:
        blocked.QUERIES_AT_ONCE = saved
    expected = example.expected()
    assert_close(out, expected, torch.float64, "out")
    for gradient, want, name in zip(grads, gradients(expected, example.leaves), LEAVES, strict=False):
        assert_close(gradient, want, torch.float64, name)


def test_the_reference_is_one_softmax_over_what_is_seen() -> None:
    example = attention(30, 37, rows=2, heads=4, kv_heads=2, window=8, overlap=True).truth()
    q, k, v, chunk_k, chunk_v, chunk_bias = example.leaves
    out = example.expected()
    for b, h, t in ((0, 0, 0), (1, 3, 0), (0, 1, 7), (1, 2, 29), (0, 3, 9)):
        position, seen = t + 7, int(example.counts[b, t])
        local, chunks = slice(max(position // 8 * 8 - 8, 0), position + 1), slice(0, seen)
        logits = [k[b, h // 2, local] @ q[b, h, t] * 0.3, chunk_k[b, h // 2, chunks] @ q[b, h, t] * 0.3 + chunk_bias[h]]
        values = torch.cat((v[b, h // 2, local], chunk_v[b, h // 2, chunks]))
        torch.testing.assert_close(out[b, h, t], torch.cat(logits).softmax(0) @ values)


@pytest.mark.parametrize("size", ["continued", "late", "biased"])
def test_gradcheck(size: str) -> None:
    shape = {**SIZES[size], "queries": 5, "keys": 9, "width": 2, "chunks": 3, "kv_heads": 1, "heads": 2}
    example = attention(**{**shape, "window": 4 if "window" in shape else None}).truth()
    leaves = example.leaves
    # There is no finite difference at minus infinity.
    leaves[5] = torch.tensor([0.5, -0.3], dtype=torch.float64, requires_grad=True)

    def run(*tensors: Any) -> Any:
        example.tensors = dict(zip(LEAVES, tensors, strict=False))
        return example.expected()

    finite = [x.detach().nan_to_num(neginf=-3.0).requires_grad_() for x in leaves]
    assert torch.autograd.gradcheck(run, finite)


def test_a_part_written_out_equals_the_fused_one() -> None:
    """The form that a CPU uses only for the gradient of a bias."""
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, 4, 300, 8, generator=generator)
    k, v = (torch.randn(2, 2, 300, 8, generator=generator) for _ in range(2))
    bias = torch.randn(2, 1, 300, 300, generator=generator)
    for mask, causal in ((None, True), (bias, False), (bias[:, :, :1], False)):
        out, lse = part.forward(q, k, v, mask, 0.3, causal=causal)
        for result, other in zip((out, lse), part.tiled_forward(q, k, v, mask, 0.3, causal=causal), strict=True):
            torch.testing.assert_close(result, other)
        inputs = (torch.cos(out), out, lse, q, k, v, mask, 0.3)
        fused = part.backward(*inputs, causal, into_bias=False)
        written = part.tiled_backward(*inputs, causal=causal, into_bias=False)
        for result, other in zip(fused, written, strict=True):
            torch.testing.assert_close(result, other, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("stored", ["transposed", "every other", "repeated"])
@pytest.mark.parametrize("name", ["q", "k", "v", "mask", "out", "dout"])
def test_the_fused_kernel_gets_rows_in_one_piece(name: str, stored: str) -> None:
    """It reads D consecutive numbers from the beginning of a row, also numbers of other tensors."""
    tensors = {key: torch.randn(2, 4, 9, 8) for key in ("q", "dout")} | {key: torch.randn(2, 2, 7, 8) for key in "kv"}
    tensors["mask"] = torch.randn(2, 4, 9, 7)

    def store(x: Any) -> Any:
        if stored == "every other":
            return torch.stack((x, torch.full_like(x, torch.nan)), -1)[..., 0]
        return x.mT.contiguous().mT if stored == "transposed" else x[..., :1].expand(x.shape)

    if name in tensors:
        tensors[name] = store(tensors[name])
    q, dout, k, v, mask = tensors.values()
    out, lse = part.tiled_forward(q, k, v, mask, 0.3, causal=False)
    for result, other in zip(part.forward(q, k, v, mask, 0.3, causal=False), (out, lse), strict=True):
        torch.testing.assert_close(result, other)
    out = store(out) if name == "out" else out
    inputs = (dout, out, lse, q, k, v, mask, 0.3)
    written = part.tiled_backward(*inputs, causal=False, into_bias=False)
    for result, other in zip(part.backward(*inputs, False, into_bias=False), written, strict=True):
        torch.testing.assert_close(result, other, atol=1e-5, rtol=1e-4)


def test_what_the_fused_kernel_can_read_is_not_copied() -> None:
    x = torch.randn(2, 9, 4, 8)
    for fits in (x, x.transpose(1, 2), x[:, ::2], x[..., 1:], x[:1], x[..., 3:4]):
        assert next(in_rows(fits)) is fits
        assert part._apart(fits) is fits
    repeated = x[:1].expand(2, -1, -1, -1)
    assert next(in_rows(repeated)) is repeated


def test_queries_that_repeat_do_not_order_the_output_wrongly() -> None:
    """Torch's kernel allocates its output with the queries' strides, and then writes contiguous rows."""
    k, v = torch.randn(1, 1, 7, 8), torch.randn(1, 1, 7, 8)
    for steps in ((1, 1, 0, 1), (0, 1, 0, 1), (8, 8, 1, 1), (3, 1, 8, 1)):
        q = torch.randn(99).as_strided((1, 1, 5, 8), steps)
        out, lse = part.forward(q, k, v, None, 0.3, causal=False)
        for result, other in zip((out, lse), part.tiled_forward(q, k, v, None, 0.3, causal=False), strict=True):
            torch.testing.assert_close(result, other)


@pytest.mark.parametrize("shape", [(1, 1, 6, 9), (2, 4, 6, 9), (1, 4, 1, 9), (6, 9), (2, 1, 6, 1)])
def test_a_bias_spreads_over_blocks_and_its_gradient_gathers(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocked, "QUERIES_AT_ONCE", 4)
    example = attention(6, 9, rows=2, heads=4, bias=True).truth()
    example.tensors["bias"] = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    expected = gradients(example.expected(), example.leaves)
    for gradient, want in zip(gradients(example.run(), example.leaves), expected, strict=True):
        torch.testing.assert_close(gradient, want)


@pytest.mark.parametrize("name", ["e1_w8c4_f64", "e2_ragged_w16c4_f64", "e3_w_eq_c_norpe_f32"])
def test_forward_and_gradients_equal_the_released_module(fixture: Any, form: str, name: str) -> None:
    description, arrays = fixture(f"eva/{name}")
    hyper = description["hyper"]
    if form == "triton":
        arrays = {key: x.float() for key, x in arrays.items()}
    module = CausalEVA(
        hyper["heads"] * hyper["head_dim"],
        hyper["heads"],
        hyper["window_size"],
        hyper["chunk_size"],
        adaptive=hyper["adaptive_proj"],
        relative_bias=hyper["use_t5_rpe"],
        overlap=hyper["overlap_window"],
    ).to(arrays["x"].dtype)
    module.load_state_dict({key[2:]: x for key, x in arrays.items() if key.startswith("w.")})
    tolerance = 1e-9 if arrays["x"].dtype == torch.float64 else 2e-5
    x = arrays["x"].clone().requires_grad_()
    out = module(x.transpose(0, 1)).transpose(0, 1)
    assert (out - arrays["out"]).abs().max() <= tolerance * arrays["out"].abs().max()
    (out * arrays["grad_out"]).sum().backward()
    for key, gradient in {
        "grad_x": x.grad,
        **{f"grad.{name}": p.grad for name, p in module.named_parameters()},
    }.items():
        assert (gradient - arrays[key]).abs().max() <= tolerance * arrays[key].abs().max().clamp(min=1), key


def test_windows_are_calls_of_their_own(form: str, device: str) -> None:
    example = attention(100, window=16, overlap=True, device=device)
    q, k, v, chunk_k, chunk_v, chunk_bias = example.leaves
    parts = []
    for begin in range(0, 100, 16):
        local = slice(max(begin - 16, 0), begin + 16)
        options = {"counts_BT": example.counts[:, begin : begin + 16], "chunk_bias_H": chunk_bias, "scale": 0.3}
        part_q = q[:, :, begin : begin + 16]
        parts.append(eva_attention(part_q, k[:, :, local], v[:, :, local], chunk_k, chunk_v, **options))
    torch.testing.assert_close(example.run(), torch.cat(parts, 2), atol=1e-6, rtol=1e-5)


def test_heads_that_see_no_chunk_are_local_attention(form: str, device: str) -> None:
    example = attention(20, 30, device=device)
    without = attention(20, 30, chunks=0, chunk_bias=False, device=device)
    without.tensors |= {name: example.tensors[name] for name in ("q", "k", "v")}
    torch.testing.assert_close(example.run()[:, 0], without.run()[:, 0])
    assert not torch.allclose(example.run()[:, 1], without.run()[:, 1])


def test_with_a_bias_each_part_of_a_block_has_the_form_that_is_forced() -> None:
    pytest.importorskip("triton")
    example = attention(6, 9, bias=True)
    with forced("triton"):
        out = example.run()
        grads = gradients(out, example.leaves)
    with forced("torch"):
        again = example.run()
    assert_close(out, again, torch.float32, "out")
    for gradient, other in zip(grads, gradients(again, example.leaves), strict=True):
        assert_close(gradient, other, torch.float32, "gradient")


def test_flops_count_what_is_visible_with_gradients_too() -> None:
    example = attention(21, 30, heads=4, kv_heads=2, width=8, window=8, overlap=True, rows=2)
    local = sum(p + 1 - max(p // 8 * 8 - 8, 0) for p in range(9, 30)) * 2 * 4
    visible = local + 4 * int(example.counts.clamp(max=5).sum())
    with torch.no_grad():
        assert count(example.run)[1] == visible * 4 * 8
    assert count(lambda: gradients(example.run(), example.leaves))[1] == 3 * visible * 4 * 8
    example = attention(6, 9, bias=True, counts=False, width=8)
    visible = 2 * int((example.tensors["bias"] > float("-inf")).sum()) + 2 * 6 * 5
    assert count(example.run)[1] == visible * 4 * 8


def test_no_score_matrix_of_all_heads_is_ever_held() -> None:
    """The largest tensor of a forward and backward pass is linear in the number of queries."""
    largest = 0

    class Largest(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            largest = max([largest, *(x.numel() for x in torch.utils._pytree.tree_leaves(out) if hasattr(x, "numel"))])
            return out

    example = attention(4096, width=2, chunks=4096, window=64, counts=False)
    out, lse = torch.zeros(1, 2, 4096, 2), torch.zeros(1, 2, 4096)
    with torch.no_grad(), Largest():
        inputs = (*example.leaves[:5], None, example.counts, example.tensors["chunk_bias"])
        blocked.forward(*inputs, 0.3, 64, 0)
        blocked.backward(out, *inputs, out, lse, 0.3, 64, 0, False, True)
    assert largest <= 4096 * 4


@pytest.mark.parametrize("size", ["continued", "late", "biased"])
def test_shapes_are_known_without_data(size: str) -> None:
    with FakeTensorMode():
        example = attention(**SIZES[size])
        out = example.run()
        assert out.shape == example.tensors["q"].shape
        assert [x.shape for x in gradients(out, example.leaves)] == [x.shape for x in example.leaves]


def test_it_compiles_without_breaks() -> None:
    example = attention(20, 30, window=8)
    compiled = torch.compile(lambda: example.run() * 2, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(), example.run() * 2)
    grads = gradients(compiled(), example.leaves)
    for gradient, other in zip(grads, gradients(example.run() * 2, example.leaves), strict=True):
        torch.testing.assert_close(gradient, other)


def test_nothing_in_is_nothing_out(form: str, device: str) -> None:
    example = attention(3, device=device)
    q, *rest = example.leaves[:5]
    assert eva_attention(q[:, :, :0], *rest, scale=1.0).shape == (1, 2, 0, 16)
    assert eva_attention(q[:, :0], *rest, scale=1.0).shape == (1, 0, 3, 16)
