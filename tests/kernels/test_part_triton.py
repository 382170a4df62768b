"""One part of a softmax by Triton, beside the same in float64 by plain torch."""

from __future__ import annotations

import mmap

import pytest
import torch
from kernel_cases import assert_close
from torch import Tensor

from contextlab.kernels import part
from contextlab.kernels.dispatch import forced

part_triton = pytest.importorskip("contextlab.kernels.part_triton")

NEVER = float("-inf")
SIZES = {
    "causal": {"queries": 70, "keys": 70, "causal": True},
    "causal of one": {"queries": 1, "keys": 1, "causal": True, "heads": 8},
    "no bias": {"queries": 33, "keys": 97, "heads": 4, "kv_heads": 4, "width": 80},
    "rows": {"queries": 65, "keys": 130, "bias": (2, 1, 65, 130), "width": 128},
    "heads": {"queries": 20, "keys": 63, "bias": (1, 4, 20, 63), "heads": 4, "kv_heads": 1},
    "one row for all": {"queries": 70, "keys": 90, "bias": (1, 1, 1, 90), "heads": 8, "kv_heads": 1},
    "one column for all": {"queries": 9, "keys": 70, "bias": (2, 4, 9, 1)},
    "two dimensions": {"queries": 5, "keys": 9, "bias": (5, 9), "width": 256},
    "generation": {"queries": 1, "keys": 70, "bias": (2, 1, 1, 70), "heads": 8},
    "divided": {"queries": 1, "keys": 600, "bias": (2, 8, 1, 600), "heads": 8, "kv_heads": 2},
    "divided without bias": {"queries": 1, "keys": 517, "heads": 1, "kv_heads": 1, "width": 33},
}


def case(
    queries: int,
    keys: int,
    *,
    heads: int = 4,
    kv_heads: int = 2,
    width: int = 64,
    bias: tuple[int, ...] | None = None,
    causal: bool = False,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> tuple[tuple[Tensor, Tensor, Tensor, Tensor | None, float], bool, Tensor]:
    """The arguments of a part, whether it is causal, and a gradient of its output; every query sees the first key."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype)

    q, dout = (normal(2, heads, queries, width) for _ in range(2))
    k, v = (normal(2, kv_heads, keys, width) for _ in range(2))
    added = None
    if bias is not None:
        hidden = torch.rand(bias, generator=generator) > 0.6
        hidden[..., 0] = False
        added = normal(*bias).masked_fill(hidden.to(device), NEVER)
    return (q, k, v, added, width**-0.5), causal, dout


def both(inputs: tuple[Tensor, Tensor, Tensor, Tensor | None, float], causal: bool, dout: Tensor) -> list[Tensor]:
    """Output, logarithm and gradients."""
    with forced("triton"):
        outputs = part.forward(*inputs, causal=causal)
        return [*outputs, *part.backward(dout, *outputs, *inputs, causal, into_bias=False)[:3]]


def expected(inputs: tuple[Tensor, Tensor, Tensor, Tensor | None, float], causal: bool, dout: Tensor) -> list[Tensor]:
    """The same in float64 by plain torch."""
    q, k, v, bias, scale = inputs
    exact = (q.double(), k.double(), v.double(), None if bias is None else bias.double(), scale)
    outputs = part.tiled_forward(*exact, causal=causal)
    gradients = part.tiled_backward(dout.double(), *outputs, *exact, causal=causal, into_bias=False)
    return [*outputs, *gradients[:3]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("size", SIZES)
def test_a_part_and_its_gradients_equal_float64(size: str, dtype: torch.dtype, device: str) -> None:
    example = case(**SIZES[size], dtype=dtype, device=device)
    pairs = zip(both(*example), expected(*example), ("out", "lse", "dq", "dk", "dv"), strict=True)
    for result, want, name in pairs:
        assert result.dtype == (torch.float32 if name == "lse" else dtype)
        assert_close(result, want, dtype, name)


def test_keys_divided_into_pieces_give_the_whole(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (q, k, v, bias, scale), *_ = case(1, 200, bias=(2, 1, 1, 200), heads=8, width=16, device=device)
    bias[..., 40:140] = NEVER
    results = []
    for keys, programs in ((50, 256), (1, 40), (50, 1), (10**6, 256)):
        monkeypatch.setattr(part_triton, "KEYS_OF_A_PIECE", keys)
        monkeypatch.setattr(part_triton, "PROGRAMS", programs)
        results.append(part_triton.forward(q, k, v, bias, scale, causal=False))
    for result in results:
        torch.testing.assert_close(result, results[-1])


@pytest.mark.parametrize("heads", [1, 8, 100, 300])
@pytest.mark.parametrize("keys", [1, 255, 256, 511, 512, 4097, 65537, 10**6])
def test_pieces_cover_all_keys_and_are_few_and_long(heads: int, keys: int) -> None:
    pieces, stretch = part_triton._pieces(heads, keys)
    assert (pieces - 1) * stretch < keys <= pieces * stretch
    assert pieces == 1 or (stretch >= 256 and pieces * heads <= 256)
    assert pieces * 2 + 1 >= min(keys // 256, 256 // heads)


def test_a_query_that_sees_nothing_has_no_part(device: str) -> None:
    for queries in (3, 1):
        (q, k, v, bias, scale), *_ = case(queries, 520, bias=(1, 1, queries, 520), width=16, device=device)
        bias[:, :, 0] = NEVER
        out, lse = part_triton.forward(q, k, v, bias, scale, causal=False)
        assert (out[:, :, 0] == 0).all()
        assert (lse[:, :, 0] == NEVER).all()
        assert lse[:, :, 1:].isfinite().all()


@pytest.mark.parametrize("queries", [1, 9])
def test_keys_are_read_where_they_lie(queries: int, device: str) -> None:
    """As a slice of a cache in which tokens come before heads, among numbers that must not be read."""
    (q, k, v, bias, scale), causal, dout = case(queries, 40, bias=(1, 1, 1, 40), device=device)
    want = both((q, k, v, bias, scale), causal, dout)
    stored = []
    for x, room in ((k, 3), (v, 5)):
        cache = torch.full((2, 40 + 2 * room, 2, 64 + room), torch.nan, device=device)
        cache[:, room : room + 40, :, :64] = x.transpose(1, 2)
        stored.append(cache[:, room : room + 40, :, :64].transpose(1, 2))
    assert all(next(part_triton.in_rows(x)) is x for x in stored)
    for result, other in zip(both((q, *stored, bias, scale), causal, dout), want, strict=True):
        assert torch.equal(result, other)


@pytest.mark.parametrize("queries", [1, 9])
def test_what_is_not_in_rows_is_copied(queries: int, device: str) -> None:
    (q, k, v, bias, scale), causal, dout = case(queries, 40, bias=(1, 1, queries, 40), device=device)
    want = both((q, k, v, bias, scale), causal, dout)
    turned = [x.mT.contiguous().mT for x in (q, k, v)]
    apart = torch.stack((bias, torch.full_like(bias, torch.nan)), -1)[..., 0]
    for result, other in zip(both((*turned, apart, scale), causal, dout.mT.contiguous().mT), want, strict=True):
        torch.testing.assert_close(result, other)


@pytest.mark.skipif(torch.cuda.is_available(), reason="memory that is not touched is not there on a GPU")
@pytest.mark.parametrize("queries", [1, 9])
def test_a_cache_beyond_four_gigabytes_is_addressed(queries: int) -> None:
    """Only the pages that are read exist: tokens, heads and rows are far apart."""
    (q, k, v, bias, scale), causal, dout = case(queries, 5, bias=(1, 1, queries, 5), width=16, dtype=torch.float16)
    want = both((q, k, v, bias, scale), causal, dout)
    token, head, row = 2**29 + 16, 2**29 + 2**20, 2**30 + 2**20
    stored = []
    for x in (k, v):
        memory = torch.frombuffer(mmap.mmap(-1, 2 * 2**32), dtype=torch.float16)
        stored.append(memory.as_strided(x.shape, (row, head, token, 1)).copy_(x))
    for result, other in zip(both((q, *stored, bias, scale), causal, dout), want, strict=True):
        assert torch.equal(result, other)


def test_logits_are_summed_in_float32(device: str) -> None:
    """Their sums and those of a large bias are beyond float16, the result is not."""
    (q, k, v, _, scale), causal, dout = case(9, 40, dtype=torch.float16, device=device)
    bias = torch.full((1, 1, 1, 40), 1e6, device=device)
    inputs = (q * 40, k * 40, v, bias, scale)
    out, lse = both(inputs, causal, dout)[:2]
    exact = expected(inputs, causal, dout)
    assert_close(out, exact[0], torch.float16, "out")
    torch.testing.assert_close(lse.double(), exact[1], atol=0.2, rtol=0)


def test_the_gradient_of_a_bias_is_torchs(device: str) -> None:
    (q, k, v, bias, scale), causal, dout = case(9, 20, bias=(2, 1, 9, 20), device=device)
    with forced("triton"):
        outputs = part.forward(q, k, v, bias, scale, causal=causal)
        gradients = part.backward(dout, *outputs, q, k, v, bias, scale, causal, into_bias=True)
    want = part.tiled_backward(dout, *outputs, q, k, v, bias, scale, causal=causal, into_bias=True)
    for gradient, other in zip(gradients, want, strict=True):
        assert torch.equal(gradient, other)
