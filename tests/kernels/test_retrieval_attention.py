"""One softmax over local keys and retrieved chunks, by laws."""

from __future__ import annotations

import mmap
from importlib import util
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import assert_close, gradients
from torch import Tensor
from torch._subclasses import FakeTensorMode

from contextlab.accounting.flops import count
from contextlab.accounting.memory import PeakMemory
from contextlab.attention import sdpa
from contextlab.kernels import retrieved
from contextlab.kernels.dispatch import VARIABLE, forced
from contextlab.kernels.retrieval_attention import Inputs, ops, reference, retrieval_attention

SIZES = {
    "ragged": {"queries": 21, "keys": 70, "width": 33, "take": 5},
    "wide": {"queries": 9, "keys": 33, "width": 256, "heads": 2, "kv_heads": 2},
    "eight to a key head": {"queries": 17, "keys": 17, "heads": 8, "kv_heads": 1, "width": 64},
    "generation": {"queries": 1, "keys": 90, "width": 64},
    "divided": {"queries": 1, "keys": 520, "width": 128, "heads": 8, "kv_heads": 2, "take": 2},
}
NAMES = ("q", "k", "v", "mask", "q_memory", "bank_k", "bank_v", "ids", "retrieved", "bias")
LEAVES = ("q", "k", "v", "q_memory", "bank_k", "bank_v", "bias")
Case = dict[str, Tensor]


def case(
    queries: int = 7,
    keys: int = 12,
    *,
    rows: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    width: int = 8,
    chunks: int = 9,
    size: int = 3,
    take: int = 4,
    dtype: torch.dtype = torch.float32,
) -> Case:
    """The last queries of what they see, and chunks of their own, some of them missing."""
    q, k = (rows, heads, queries, width), (rows, kv_heads, keys, width)
    bank = (rows, kv_heads, chunks, size, width)
    key = torch.arange(keys)
    hidden = key > key[keys - queries :, None]
    ids = torch.stack([torch.randperm(chunks)[:take] for _ in range(rows * heads * queries)]).view(*q[:3], take)
    result = torch.rand(ids.shape) > 0.3
    shapes = {"q": q, "k": k, "v": k, "q_memory": q, "bank_k": bank, "bank_v": bank, "bias": (heads,)}
    normal = {name: torch.randn(shape).to(dtype) for name, shape in shapes.items()}
    mask = torch.zeros(1, queries, keys).masked_fill(hidden, float("-inf"))
    example = {**normal, "mask": mask.to(dtype), "ids": ids.masked_fill(~result, 10**12), "retrieved": result}
    return {name: example[name] for name in NAMES}


@pytest.fixture
def triton_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's form, where it is installed."""
    if util.find_spec("triton") is None:
        pytest.skip("triton is not installed")
    monkeypatch.setenv(VARIABLE, "triton")


def run(example: Case, **changed: Any) -> Tensor:
    return retrieval_attention(Inputs(*{**example, **changed}.values()), scale=0.3)


def local(example: Case) -> Tensor:
    return sdpa(example["q"], example["k"], example["v"], example["mask"][:, None], 0.3)


def one_by_one(example: Case) -> Tensor:
    """For every query by itself: all keys that it meets, in one list."""
    out = torch.zeros_like(example["q"])
    group = example["q"].shape[1] // example["k"].shape[1]
    for b, h, t in torch.cartesian_prod(*(torch.arange(n) for n in out.shape[:3])).tolist():
        seen = example["mask"][0, t] == 0
        ids = example["ids"][b, h, t][example["retrieved"][b, h, t]]
        far_k, far_v = (example[name][b, h // group, ids].flatten(0, 1) for name in ("bank_k", "bank_v"))
        near_k, near_v = (example[name][b, h // group][seen] for name in ("k", "v"))
        far = far_k @ example["q_memory"][b, h, t] * 0.3 + example["bias"][h]
        weights = torch.cat((near_k @ example["q"][b, h, t] * 0.3, far)).softmax(0)
        out[b, h, t] = weights @ torch.cat((near_v, far_v))
    return out


@pytest.mark.parametrize("form", ["reference", "torch"])
def test_it_is_one_softmax_over_all_that_a_query_meets(form: str) -> None:
    example = case(dtype=torch.float64)
    with forced(form):
        torch.testing.assert_close(run(example), one_by_one(example), atol=1e-12, rtol=1e-12)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 20), st.integers(0, 9), st.integers(1, 3), st.integers(1, 6), st.integers(1, 200))
def test_keys_moved_from_the_view_into_the_bank_change_nothing(
    queries: int, older: int, size: int, chunks: int, at_once: int
) -> None:
    """Attention over all keys, of which any number is retrieved, in any order."""
    retrieved.GATHERED_ELEMENTS, saved = at_once, retrieved.GATHERED_ELEMENTS
    try:
        moved = size * chunks
        whole = case(queries, moved + older + queries, chunks=1, take=1, size=1, dtype=torch.float64)
        k, v = whole["k"], whole["v"]
        bank_k, bank_v = (x[:, :, :moved].unflatten(2, (chunks, size)) for x in (k, v))
        ids = torch.stack([torch.randperm(chunks) for _ in range(2 * 4 * queries)]).view(2, 4, queries, chunks)
        parts = {
            "k": k[:, :, moved:],
            "v": v[:, :, moved:],
            "mask": whole["mask"][..., moved:],
            "q_memory": whole["q"],
            "bank_k": bank_k,
            "bank_v": bank_v,
            "ids": ids,
            "retrieved": torch.ones_like(ids, dtype=torch.bool),
            "bias": torch.zeros(4).double(),
        }
        torch.testing.assert_close(run(whole, **parts), local(whole), atol=1e-12, rtol=1e-12)
    finally:
        retrieved.GATHERED_ELEMENTS = saved


@pytest.mark.parametrize("form", ["reference", "torch"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_bias_opens_and_closes_the_bank(form: str, dtype: torch.dtype) -> None:
    example = case(dtype=dtype)
    example["retrieved"][...] = True
    example["ids"] = example["ids"] % 9
    with forced(form):
        closed, open_ = (run(example, bias=torch.full((4,), bias, dtype=dtype)) for bias in (-torch.inf, 1e4))
        close = {"atol": 1e-2, "rtol": 1e-2} if dtype == torch.bfloat16 else {}
        torch.testing.assert_close(closed, local(example), **close)
        hidden = example["mask"].clone()
        hidden[..., 1:] = -torch.inf
        again = run(example, bias=torch.full((4,), 1e4, dtype=dtype), mask=hidden)
        torch.testing.assert_close(open_, again, **close)


@pytest.mark.parametrize("form", ["reference", "torch"])
@pytest.mark.parametrize("empty", ["retrieved", "chunks", "taken"])
def test_an_empty_bank_leaves_the_local_attention(form: str, empty: str) -> None:
    example = case()
    example["retrieved"][...] = False
    if empty == "chunks":
        example["bank_k"], example["bank_v"] = example["bank_k"][:, :, :0], example["bank_v"][:, :, :0]
    if empty == "taken":
        example["ids"], example["retrieved"] = example["ids"][..., :0], example["retrieved"][..., :0]
    with forced(form):
        torch.testing.assert_close(run(example), local(example))


@pytest.mark.parametrize(("dtype", "rows"), [(torch.float32, 1), (torch.float16, 2)])
@pytest.mark.parametrize("size", SIZES)
def test_forward_and_every_gradient_equal_float64(
    size: str, dtype: torch.dtype, rows: int, device: str, triton_form: None
) -> None:
    """With one mask for all rows or one for each, and with a query that has retrieved nothing."""
    example = case(**SIZES[size], dtype=dtype)
    example["retrieved"][:, :, ::3] = False
    for name in ("q", "q_memory"):
        # Logits of about 1, whatever the width: a softmax of one key has no gradients to compare.
        example[name] *= example[name].shape[3] ** -0.5 / 0.3
    mask = example["mask"].repeat(rows, 1, 1)
    mask[-1, :, 1:9] = -torch.inf
    check({name: x.to(device) for name, x in {**example, "mask": mask}.items()}, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_bank_of_a_million_tokens_does_not_differ(dtype: torch.dtype, device: str, triton_form: None) -> None:
    example = case(rows=1, heads=2, kv_heads=1, width=64, chunks=125_000, size=8, dtype=dtype)
    for name in ("q", "q_memory"):
        example[name] *= 64**-0.5 / 0.3
    check({name: x.to(device) for name, x in example.items()}, dtype)


def check(example: Case, dtype: torch.dtype) -> None:
    """Output and gradients beside those of float64."""
    exact = {name: x.double() if x.is_floating_point() else x for name, x in example.items()}
    for tensors in (example, exact):
        tensors |= {name: tensors[name].requires_grad_() for name in LEAVES}
    out, want = run(example), reference.retrieval_attention(Inputs(*exact.values()), 0.3)
    assert_close(out, want, dtype, "out")
    pairs = zip(*(gradients(x, [m[name] for name in LEAVES]) for x, m in ((out, example), (want, exact))), strict=True)
    for name, (gradient, other) in zip(LEAVES, pairs, strict=True):
        assert gradient.dtype == dtype
        assert_close(gradient, other, dtype, name)


@pytest.mark.parametrize("wrong", [9, -1, 10**12, -(10**12)])
def test_an_unchecked_id_out_of_range_counts_as_not_retrieved(wrong: int, device: str, triton_form: None) -> None:
    """As on a GPU: the bank is read and changed nowhere else."""
    example = {name: x.to(device) for name, x in case().items()}
    outside = example["retrieved"].clone()
    outside[:, :, ::2] = False

    def both(ids: Tensor, retrieved: Tensor) -> tuple[Tensor, ...]:
        inputs = Inputs(*{**example, "ids": ids, "retrieved": retrieved}.values())
        form = ops._form(inputs)
        out, lse = form.forward(inputs, 0.3)
        return out, lse, *form.backward(torch.cos(out), inputs, out, lse, 0.3, True)

    first = both(example["ids"].masked_fill(outside, wrong), example["retrieved"])
    for result, other in zip(first, both(example["ids"], example["retrieved"] & ~outside), strict=True):
        assert torch.equal(result, other)


@pytest.mark.skipif(torch.cuda.is_available(), reason="memory that is not touched is not there on a GPU")
def test_a_bank_beyond_four_gigabytes_is_addressed(triton_form: None) -> None:
    """Only the pages that are read exist."""
    example = case(chunks=2, take=2, dtype=torch.float16)
    leaves = ("q", "k", "v", "q_memory", "bias")

    def both(**changed: Tensor) -> tuple[Tensor, ...]:
        leaf_tensors = {name: example[name].detach().requires_grad_() for name in leaves}
        out = run(example, **leaf_tensors, **changed)
        return out, *torch.autograd.grad(out.sin().sum(), list(leaf_tensors.values()))

    stored = {}
    for name in ("bank_k", "bank_v"):
        memory = torch.frombuffer(mmap.mmap(-1, 2 * 2**32), dtype=torch.float16)
        steps = (2**30, 2**29, 2**31 + 2**20, 8, 1)
        stored[name] = memory.as_strided(example[name].shape, steps).copy_(example[name])
    for result, other in zip(both(**stored), both(), strict=True):
        assert torch.equal(result, other)


@pytest.mark.parametrize("form", ["reference", "torch"])
def test_gradients_are_finite_differences(form: str) -> None:
    example = case(3, 5, heads=2, kv_heads=1, width=2, chunks=3, size=2, take=2, rows=1, dtype=torch.float64)

    def of(*leaves: Tensor) -> Tensor:
        with forced(form):
            return run(example, **dict(zip(LEAVES, leaves, strict=True)))

    assert torch.autograd.gradcheck(of, tuple(example[name].requires_grad_() for name in LEAVES))


def test_the_bank_gets_no_gradient_unless_asked() -> None:
    example = case()
    result = {}
    for wanted in (LEAVES, tuple(name for name in LEAVES if not name.startswith("bank"))):
        leaves = {name: example[name].detach().requires_grad_() for name in wanted}
        out = run(example, **leaves)
        result[wanted] = dict(zip(wanted, torch.autograd.grad(out.sin().sum(), tuple(leaves.values())), strict=True))
    first, second = result.values()
    for name, gradient in second.items():
        torch.testing.assert_close(gradient, first[name])


@pytest.mark.parametrize("spare", [0, 1, 3])
def test_a_bank_that_begins_a_larger_piece_of_memory_is_read_in_place(spare: int) -> None:
    example = case()
    out, larger = run(example), {}
    for name in ("bank_k", "bank_v"):
        memory = torch.full((2, 2, 27 + spare, 8), torch.nan)
        memory[:, :, :27] = example[name].flatten(2, 3)
        larger[name] = memory[:, :, :27].unflatten(2, (9, 3))
    assert torch.equal(run(example, **larger), out)


def test_a_narrow_bank_is_widened() -> None:
    example = case()
    narrow = {name: example[name].half() for name in ("bank_k", "bank_v")}
    torch.testing.assert_close(run(example, **narrow), run(example, **{n: x.float() for n, x in narrow.items()}))


def test_one_query_after_another_equals_all_at_once() -> None:
    example = case(dtype=torch.float64)
    together = run(example)
    for t in range(7):
        query = {name: example[name][:, :, t : t + 1] for name in ("q", "q_memory", "ids", "retrieved")}
        result = run(example, **query, mask=example["mask"][:, t : t + 1])
        torch.testing.assert_close(result, together[:, :, t : t + 1])


def test_repeated_runs_are_bitwise_equal() -> None:
    example = case()
    assert torch.equal(run(example), run(example))


def test_no_query_keeps_all_that_it_retrieves() -> None:
    example = case(256, 300, chunks=256, size=4, take=16, width=32)
    peaks = {}
    for form in ("reference", "torch"):
        with forced(form), PeakMemory() as peak:
            run(example)
        peaks[form] = peak.peak_bytes
    assert peaks["torch"] * 8 <= peaks["reference"]


@pytest.mark.parametrize("into_bank", [True, False])
def test_flops_are_those_of_visible_pairs_and_retrieved_tokens(into_bank: bool) -> None:
    example = case()
    pairs = int((example["mask"] == 0).sum()) * 2 * 4 * 4 * 8
    memory = int(example["retrieved"].sum()) * 3 * 4 * 8
    wanted = LEAVES if into_bank else ("q", "k", "v", "q_memory", "bias")
    leaves = {name: example[name].requires_grad_() for name in wanted}
    out, forward = count(lambda: run(example, **leaves))
    assert forward == pairs + memory
    _, backward = count(lambda: out.sum().backward())
    assert backward == 2 * pairs + (2 if into_bank else 1) * memory


def test_shapes_are_known_without_data() -> None:
    example = case()
    mode = FakeTensorMode()
    with mode:
        fake = {name: mode.from_tensor(x) for name, x in example.items()}
        leaves = {name: fake[name].requires_grad_() for name in LEAVES}
        out = run(fake, **leaves)
        assert out.shape == example["q"].shape
        gradients = torch.autograd.grad(out.sum(), tuple(leaves.values()))
        assert [x.shape for x in gradients] == [x.shape for x in leaves.values()]


def test_it_compiles_into_one_graph_with_its_gradients() -> None:
    example = case()

    def both(*leaves: Tensor) -> Tensor:
        return run(example, **dict(zip(LEAVES, leaves, strict=True)))

    leaves = [example[name].requires_grad_() for name in LEAVES]
    compiled = torch.compile(both, fullgraph=True, backend="aot_eager")
    out, eager = compiled(*leaves), both(*leaves)
    torch.testing.assert_close(out, eager)
    pairs = zip(*(torch.autograd.grad(x.sin().sum(), leaves) for x in (out, eager)), strict=True)
    for result, other in pairs:
        torch.testing.assert_close(result, other)


@pytest.mark.parametrize(
    ("changed", "error", "sentence"),
    [
        ({"k": torch.zeros(2, 3, 12, 8), "v": torch.zeros(2, 3, 12, 8)}, ValueError, "k_BKncD has K = 2 where K = 3"),
        ({"mask": torch.zeros(2, 7, 11)}, ValueError, "mask_BTS has S = 11 where S = 12 before"),
        ({"mask": torch.zeros(1, 6, 12)}, ValueError, "mask_1TS has T = 6 where T = 7 before"),
        ({"mask": torch.zeros(7, 12)}, ValueError, "mask_BTS has 2 dimensions: give it 3"),
        ({"q_memory": torch.zeros(2, 4, 7, 8).half()}, TypeError, "q_memory_BHTD is torch.float16 beside"),
        ({"bank_v": torch.zeros(2, 2, 9, 3, 8).half()}, TypeError, "v_BKncD is torch.float16 beside k_BKncD"),
        ({"bias": torch.zeros(3)}, ValueError, "bias_H has H = 3 where H = 4 before"),
        ({"ids": torch.zeros(2, 4, 7, 4)}, TypeError, "ids_BHTm is torch.float32: give it as torch.int64"),
        (
            {"ids": torch.full((2, 4, 7, 4), 9), "retrieved": torch.ones(2, 4, 7, 4).bool()},
            ValueError,
            "ids_BHTm has 9",
        ),
    ],
)
def test_a_mistake_is_one_sentence(changed: dict[str, Tensor], error: type[Exception], sentence: str) -> None:
    example = case()
    with pytest.raises(error, match=sentence):
        run(example, **changed)
