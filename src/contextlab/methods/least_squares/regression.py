"""Ridge regression of one layer, added to an earlier one, and what is kept of both.

Legend: n rows of the regression, I inputs and O outputs of a layer, m terms of a sum, r rank, p directions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from contextlab.accounting.decompositions import cholesky_flops, eigh_flops, qr_flops, triangular_flops


def fitted(x_nI: Tensor, y_nO: Tensor, inverse_II: Tensor, seen_pI: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
    """`up_Om` and `down_mI`, m the lesser of n and I, whose product D brings D x as near to y as the ridge lets it.

    D = Y' (Z X' + s 1)^-1 Z with Z = X P and s = ridge times the mean of diag(X C X'): the minimum of
    |Y - X D'|^2 + s tr(D P^-1 D'). P = C - seen' seen, where C is the inverse covariance of generic inputs, and `seen`
    what earlier regressions have taken of it, so that the sum of all D is that of recursive least squares.

    Args:
        x_nI: inputs of the layer.
        y_nO: what its output lacks.
        inverse_II: C.
        seen_pI: see above; without rows after no regression.
        ridge: in units of the mean of diag(X C X').
    """
    count, inputs = x_nI.shape
    if count > inputs:
        # The minimum depends on X'X and X'Y alone, which I rows have, too.
        Q_nI, x_nI = torch.linalg.qr(x_nI)
        y_nO = Q_nI.mT @ y_nO
    generic_nI = x_nI @ inverse_II
    spread = ridge * (generic_nI * x_nI).sum(1).sum() / count
    z_nI = generic_nI - (x_nI @ seen_pI.mT) @ seen_pI
    gram_nn = z_nI @ x_nI.mT
    # Inputs of zero have no scale.
    gram_nn.diagonal().add_(spread.clamp(min=torch.finfo(x_nI.dtype).tiny))
    lower_nn = torch.linalg.cholesky(gram_nn)
    both_nX = torch.linalg.solve_triangular(lower_nn, torch.cat((z_nI, y_nO), dim=1), upper=False)
    down_nI, up_nO = both_nX.split((x_nI.shape[1], y_nO.shape[1]), dim=1)
    return up_nO.mT, down_nI


def sizes(wanted_nO: Tensor, computed_nO: Tensor) -> Tensor:
    """`size_n1`: of every row the larger norm of two states.

    Attention rests on a few tokens of a text, and the two readings need not agree on them. In the layers where these
    tokens' states grow to many times the size of others, their rows alone decide a regression of absolute errors. The
    layers above read every state through a norm, so that an error counts relative to its state.

    Args:
        wanted_nO: the states after the block that the regression is to give.
        computed_nO: those that the block gives so far.
    """
    size_n = torch.maximum(wanted_nO.norm(dim=1), computed_nO.norm(dim=1))
    return size_n.clamp(min=torch.finfo(size_n.dtype).eps)[:, None]


def shortened(up_Om: Tensor, down_mI: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """`up_Or` and `down_rI`: the best approximation of the product of that rank; `rank` is at most O."""
    change_OI = up_Om @ down_mI
    basis_Or = torch.linalg.eigh(change_OI @ change_OI.mT).eigenvectors[:, -rank:]
    return basis_Or, basis_Or.mT @ change_OI


def strongest(seen_mI: Tensor, count: int) -> Tensor:
    """`seen_pI` with `count` rows, whose seen' seen is the best approximation of that of all m rows; p <= m."""
    basis_mp: Tensor = torch.linalg.eigh(seen_mI @ seen_mI.mT).eigenvectors[:, max(len(seen_mI) - count, 0) :]
    return basis_mp.mT @ seen_mI


def fit_flops(rows: int, inputs: int, outputs: int, seen: int) -> int:
    """FLOPs of `fitted`."""
    triangle = 0
    if rows > inputs:
        triangle = qr_flops((rows, inputs)) + 2 * rows * inputs * outputs
        rows = inputs
    products = 2 * rows * inputs * (inputs + 2 * seen + rows)
    return triangle + products + cholesky_flops((rows, rows)) + triangular_flops((rows, rows), (rows, inputs + outputs))


def shorten_flops(terms: int, inputs: int, outputs: int, rank: int) -> int:
    """FLOPs of `shortened`."""
    return 2 * outputs * inputs * (terms + outputs + rank) + eigh_flops((outputs, outputs))


def strongest_flops(terms: int, inputs: int, count: int) -> int:
    """FLOPs of `strongest`."""
    return 2 * terms * inputs * (terms + count) + eigh_flops((terms, terms))
