"""Normalisations of S (section 3.2): what is made of it is the same for cS, c > 0; of S = 0 it is 0.

Legend: R = d_r, r rank kept, q directions looked at, `...` any rows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from contextlab.methods.generative_adapter.config import GenerativeAdapterConfig


def factors(S_RR: Tensor, rank: int, config: GenerativeAdapterConfig) -> tuple[Tensor, Tensor | None]:
    """`left_Rr` and `right_rR` with norm(S) = left @ right; right is None where it would be the identity."""
    match config.normalisation:
        case "svd":
            return polar_factors(S_RR, rank)
        case "svd-lowrank":
            return lowrank_factors(S_RR, rank, config)
        case "polar":
            return newton_schulz(S_RR, config.steps), None
        case "frobenius":
            return frobenius(S_RR), None
        case "none":
            return S_RR, None


def frobenius(S_RR: Tensor) -> Tensor:
    """S over its Frobenius norm."""
    norm = torch.linalg.vector_norm(S_RR, dim=(-2, -1), keepdim=True)
    return S_RR / torch.where(norm > 0, norm, 1.0)


def newton_schulz(S_RR: Tensor, steps: int) -> Tensor:
    """The orthogonal polar factor by matrix products alone, so that its gradient is finite whatever the spectrum."""
    X_RR = frobenius(S_RR)
    for _ in range(steps):
        X_RR = 1.5 * X_RR - 0.5 * X_RR @ (X_RR.mT @ X_RR)
    return X_RR


def polar_factors(S_mn: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """`U_mr` and `V_rn` of the `rank` largest singular values of S, m <= n, all of them taken as one.

    Directions whose singular value is zero up to rounding are zero in both. Any function of U @ V can be
    differentiated: its gradient has a pole only where the first value dropped equals the last one kept, and is cut off
    there.
    """
    U_mr, V_rn = _PolarFactors.apply(S_mn, rank)  # type: ignore[no-untyped-call]
    return U_mr, V_rn


def lowrank_factors(S_RR: Tensor, rank: int, config: GenerativeAdapterConfig) -> tuple[Tensor, Tensor]:
    """`polar_factors` of S on a random subspace (Halko et al. 2011, as torch.svd_lowrank), the same for a seed.

    The gradient treats the subspace as a constant.
    """
    directions = min(rank + config.oversampling, S_RR.shape[-1])
    generator = torch.Generator().manual_seed(config.seed)
    random_Rq = torch.randn(S_RR.shape[-1], directions, generator=generator).to(S_RR)
    with torch.no_grad():
        Q_Rq = torch.linalg.qr(S_RR @ random_Rq).Q
        for _ in range(config.niter):
            Q_Rq = torch.linalg.qr(S_RR.mT @ Q_Rq).Q
            Q_Rq = torch.linalg.qr(S_RR @ Q_Rq).Q
    U_qr, V_rR = polar_factors(Q_Rq.mT @ S_RR, rank)
    return Q_Rq @ U_qr, V_rR


class _PolarFactors(torch.autograd.Function):
    """With S = U diag(s) V and f one for kept values, zero for the others, the differential of U diag(f) V in the basis
    of U and V takes the symmetric part of dS times (f_i - f_j) / (s_i - s_j), and the antisymmetric part times
    (f_i + f_j) / (s_i + s_j). This map is its own adjoint. The singular vectors' own gradients, which have a pole at
    every repeated value, are not needed.
    """

    @staticmethod
    def forward(ctx: Any, S_mn: Tensor, rank: int) -> tuple[Tensor, Tensor]:
        U_mm, s_m, V_mn = torch.linalg.svd(S_mn, full_matrices=False)
        floor = max(S_mn.shape[-2:]) * torch.finfo(S_mn.dtype).eps * s_m[..., :1]
        kept_m = (s_m > floor) & (torch.arange(s_m.shape[-1], device=s_m.device) < rank)
        ctx.save_for_backward(U_mm, s_m, V_mn, kept_m, floor)
        kept_r = kept_m[..., :rank].to(S_mn.dtype)
        return U_mm[..., :rank] * kept_r[..., None, :], V_mn[..., :rank, :] * kept_r[..., None]

    @staticmethod
    def backward(ctx: Any, dU_mr: Tensor, dV_rn: Tensor) -> tuple[Tensor, None]:
        U_mm, s_m, V_mn, kept_m, floor = ctx.saved_tensors
        dropped = s_m.shape[-1] - dU_mr.shape[-1]
        dU_mm = torch.nn.functional.pad(dU_mr, (0, dropped))
        dV_mn = torch.nn.functional.pad(dV_rn, (0, 0, 0, dropped)) * kept_m[..., None]
        # The gradient G of U @ V reaches us as G V^T and U^T G; where neither side is kept it does not count.
        G_mm = torch.where(kept_m[..., None], dV_mn @ V_mn.mT, U_mm.mT @ dU_mm * kept_m[..., None, :])
        f_m = kept_m.to(s_m.dtype)
        gap_mm, sum_mm = (s_m[..., None] - s_m[..., None, :], s_m[..., None] + s_m[..., None, :])
        symmetric_mm = _ratio(f_m[..., None] - f_m[..., None, :], gap_mm, floor[..., None])
        antisymmetric_mm = _ratio(f_m[..., None] + f_m[..., None, :], sum_mm, floor[..., None])
        D_mm = symmetric_mm * (G_mm + G_mm.mT) / 2 + antisymmetric_mm * (G_mm - G_mm.mT) / 2
        beyond_mn = _ratio(f_m, s_m, floor)[..., None] * (dV_mn - dV_mn @ V_mn.mT @ V_mn)
        return U_mm @ (D_mm @ V_mn + beyond_mn), None


def _ratio(above: Tensor, below: Tensor, floor: Tensor) -> Tensor:
    """above / below, and zero where `below` is nothing but rounding."""
    enough = below.abs() > floor
    return torch.where(enough, above / torch.where(enough, below, 1.0), 0.0)
