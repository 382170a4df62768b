"""Numbers in few bits: how far they are from what was stored, and how many bytes they take."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contextlab.errors import UserError
from contextlab.methods.parts.few_bits import BITS, MOST, Range, Storage, Vectors

ROUNDING = 2**-11
"""Of a number to float16."""


@settings(max_examples=80, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from([8, 4]),
    st.sampled_from([1e-3, 1.0, 1e3]),
    st.sampled_from([0.0, -7.0, 300.0]),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_an_error_is_at_most_half_a_step(seed: int, bits: int, size: float, middle: float, dtype: torch.dtype) -> None:
    x = middle + size * torch.randn(3, 5, 12, generator=torch.Generator().manual_seed(seed)).to(dtype)
    for dim in (1, 2):
        shared = Range.of(x, dim, bits)
        restored = shared.numbers(shared.codes(x, bits), bits, dtype)
        step = (x.amax(dim, keepdim=True) - x.amin(dim, keepdim=True)) / (2**bits - 1)
        allowed = 0.505 * step + ROUNDING * x.abs().amax(dim, keepdim=True) + 1e-6
        assert restored.dtype == dtype
        assert bool(((restored - x).abs() <= allowed).all())


def test_equal_numbers_and_zeros_are_exact() -> None:
    for value in (0.0, -3.5, 1024.0):
        x = torch.full((2, 6), value)
        for bits in (8, 4):
            shared = Range.of(x, -1, bits)
            assert torch.equal(shared.numbers(shared.codes(x, bits), bits, torch.float32), x)


def test_numbers_that_float16_does_not_reach_are_clipped_and_others_stay_seen() -> None:
    vectors = Vectors.of("int8", torch.float32, 4)
    restored = vectors.restored(
        vectors.stored(torch.tensor([[1e6, 0, -2, 5.0], [1, 2, float("nan"), 4]])), torch.float32
    )
    assert restored[0, 0] == pytest.approx(MOST, rel=1e-2)
    assert bool(restored[1].isnan().all())


@pytest.mark.parametrize("storage", [None, "float16", "bfloat16", "float32", "int8", "int4"])
@pytest.mark.parametrize("own", [torch.float32, torch.bfloat16])
def test_vectors_take_the_bytes_that_they_are_said_to_take(storage: Storage | None, own: torch.dtype) -> None:
    x = torch.randn(2, 3, 5, 16).to(own)
    vectors = Vectors.of(storage, own, 16)
    stored = vectors.stored(x)
    assert (stored.dtype, stored.shape[-1]) == (vectors.dtype, vectors.width(16))
    assert stored.nbytes == 2 * 3 * 5 * vectors.nbytes(16)
    restored = vectors.restored(stored, own)
    assert (restored.dtype, restored.shape) == (own, x.shape)
    assert float((restored - x).abs().max()) < {"int4": 0.4}.get(storage or "", 0.05)
    assert vectors.restored(stored[:, :, :0], own).shape == (2, 3, 0, 16)


@pytest.mark.parametrize("bits", list(BITS.values()))
def test_a_gradient_passes_wide_storage_and_ends_in_few_bits(bits: Literal[8, 4]) -> None:
    x = torch.randn(3, 8, requires_grad=True)
    assert not Vectors(torch.uint8, bits).stored(x).requires_grad
    assert Vectors(torch.float16).stored(x).requires_grad


def test_pairs_of_numbers_need_an_even_width() -> None:
    with pytest.raises(UserError, match="heads have 5: use int8"):
        Vectors.of("int4", torch.float32, 5)
    assert Vectors.of("int8", torch.float32, 5).width(5) == 9
