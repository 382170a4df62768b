from __future__ import annotations

from typing import Any

import pytest
import torch

from contextlab.accounting.decompositions import qr_flops, svd_flops
from contextlab.accounting.flops import count
from contextlab.methods.generative_adapter.config import GenerativeAdapterConfig
from contextlab.methods.generative_adapter.normalise import (
    factors,
    frobenius,
    lowrank_factors,
    newton_schulz,
    polar_factors,
)

KINDS = ("svd", "svd-lowrank", "polar", "frobenius")


def random(*shape: Any, seed: int = 0) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def spectrum(*values: Any, seed: int = 0) -> Any:
    """A square matrix with these singular values and random singular vectors."""
    left, right = (torch.linalg.qr(random(len(values), len(values), seed=seed + i)).Q for i in (1, 2))
    return left @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ right


def normalised(S: Any, kind: Any, rank: int = 3, **settings: Any) -> Any:
    left, right = factors(S, rank, GenerativeAdapterConfig(normalisation=kind, **settings))
    return left if right is None else left @ right


NASTY = {
    "zero": torch.zeros(6, 6, dtype=torch.float64),
    "repeated": spectrum(2, 2, 2, 1, 1, 0.5),
    "tied at the cut": spectrum(3, 2, 1, 1, 1, 0.5),
    "rank one": random(6, 1) @ random(1, 6, seed=5),
    "identity": torch.eye(6, dtype=torch.float64),
    "tiny values": spectrum(1, 1e-3, 1e-9, 1e-12, 1e-300, 0),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NASTY)
def test_values_and_gradients_stay_finite(kind: str, name: str) -> None:
    for dtype in (torch.float64, torch.float32):
        S = NASTY[name].to(dtype, copy=True).requires_grad_()
        N = normalised(S, kind)
        (N * random(6, 6, seed=9).to(dtype)).sum().backward()
        assert bool(N.isfinite().all())
        assert bool(S.grad.isfinite().all())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("factor", [1e-6, 0.37, 1e6])
def test_scale_does_not_matter(kind: str, factor: float) -> None:
    S = random(2, 7, 7)
    torch.testing.assert_close(normalised(factor * S, kind), normalised(S, kind))


@pytest.mark.parametrize("kind", KINDS)
def test_of_nothing_comes_nothing_and_rows_are_their_own(kind: str) -> None:
    S = torch.stack((random(6, 6), torch.zeros(6, 6, dtype=torch.float64), random(6, 6, seed=3)))
    together = normalised(S, kind)
    assert not bool(together[1].any())
    for row in range(3):
        torch.testing.assert_close(together[row], normalised(S[row], kind))


def test_the_full_rank_factor_is_the_orthogonal_polar_factor() -> None:
    S = spectrum(3, 2, 1.5, 1, 0.7, 0.5)
    squares, vectors = torch.linalg.eigh(S.mT @ S)
    expected = S @ vectors @ torch.diag(squares.rsqrt()) @ vectors.mT
    torch.testing.assert_close(normalised(S, "svd", rank=6), expected)
    torch.testing.assert_close(newton_schulz(S, 20), expected)


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_what_is_kept_is_an_isometry_of_the_leading_directions(rank: int) -> None:
    S = spectrum(5, 3, 1, 0)
    U, V = polar_factors(S, rank)
    kept = min(rank, 3)
    values = torch.linalg.svdvals(U @ V)
    torch.testing.assert_close(values, (torch.arange(4) < kept).double(), atol=1e-10, rtol=0)
    leading = torch.linalg.svdvals(S)[:kept].sum()
    torch.testing.assert_close((S * (U @ V)).sum(), leading)


def test_rounding_in_the_null_space_is_dropped_in_float32() -> None:
    S = (random(40, 5) @ random(5, 40, seed=1)).float()
    assert torch.linalg.matrix_rank(normalised(S, "svd", rank=20)) == 5


@pytest.mark.parametrize("rank", [1, 3, 6])
def test_the_gradient_is_that_of_finite_differences(rank: int) -> None:
    S = spectrum(3, 2, 1.5, 0.9, 0.6, 0.2)
    for function in (
        lambda S: torch.matmul(*polar_factors(S, rank)),
        lambda S: torch.matmul(*polar_factors(S[:4], min(rank, 4))),
        lambda S: newton_schulz(S, 6),
        frobenius,
    ):
        assert torch.autograd.gradcheck(function, (S.requires_grad_(),))


def test_the_gradient_at_repeated_kept_values_is_the_limit_of_nearby_ones() -> None:
    def gradient(S: Any) -> Any:
        S = S.clone().requires_grad_()
        (normalised(S, "svd", rank=2) * random(4, 4, seed=9)).sum().backward()
        return S.grad

    torch.testing.assert_close(
        gradient(spectrum(2, 2, 1, 0.5)), gradient(spectrum(2 + 1e-7, 2, 1, 0.5)), atol=1e-5, rtol=1e-5
    )


def test_the_random_subspace_is_seeded_and_good_with_oversampling_and_iterations() -> None:
    S = spectrum(*[0.8**i for i in range(24)])
    exact = normalised(S, "svd", rank=6)

    def error(**settings: Any) -> Any:
        product = torch.matmul(*lowrank_factors(S, 6, GenerativeAdapterConfig(**settings)))
        return float((product - exact).norm() / exact.norm())

    assert error() == error(seed=0) != error(seed=1)
    assert error() > 1e-3
    assert error(oversampling=12, niter=4) < 1e-3 < error(oversampling=2)
    assert error(oversampling=18) == pytest.approx(0, abs=1e-10)


@pytest.mark.parametrize("rows", [1, 3])
def test_decompositions_are_counted(rows: int) -> None:
    S = random(rows, 8, 8).float()
    assert count(lambda: normalised(S, "svd"))[1] - rows * 21 * 8**3 == rows * 2 * 8 * 8 * 3
    assert count(lambda: newton_schulz(S, 20))[1] == rows * 20 * 2 * 2 * 8**3
    lowrank = count(lambda: lowrank_factors(S, 3, GenerativeAdapterConfig()))[1]
    qr, svd, products = 3 * qr_flops((8, 3)), svd_flops((3, 8)), 4 * 2 * 8 * 8 * 3 + 2 * 8 * 3 * 3
    assert lowrank == rows * (qr + svd + products)
