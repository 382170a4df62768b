"""FLOPs of matrix decompositions, as torch's counter and the formulas of methods count them.

Legend: m x n, or n x n, the last two dimensions of a shape; those in front are rows of a batch.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.utils.flop_counter import register_flop_formula


@register_flop_formula(torch.ops.aten._linalg_svd)
def svd_flops(shape: tuple[int, ...], *_args: Any, **_kwargs: Any) -> int:
    """Golub and Van Loan's count for all three factors of m x n: 4 m^2 n + 8 m n^2 + 9 n^3, n the smaller."""
    *rows, a, b = shape
    m, n = max(a, b), min(a, b)
    return math.prod(rows) * (4 * m * m * n + 8 * m * n * n + 9 * n**3)


@register_flop_formula(torch.ops.aten.linalg_qr)
def qr_flops(shape: tuple[int, ...], *_args: Any, **_kwargs: Any) -> int:
    """Householder QR of m x n, n <= m, with Q written out: 4 (m n^2 - n^3 / 3)."""
    *rows, m, n = shape
    return math.prod(rows) * 4 * (3 * m * n * n - n**3) // 3


@register_flop_formula(torch.ops.aten.linalg_cholesky_ex)
def cholesky_flops(shape: tuple[int, ...], *_args: Any, **_kwargs: Any) -> int:
    """n^3 / 3."""
    *rows, n, _ = shape
    return math.prod(rows) * n**3 // 3


@register_flop_formula(torch.ops.aten.linalg_solve_triangular)
def triangular_flops(shape: tuple[int, ...], right: tuple[int, ...], *_args: Any, **_kwargs: Any) -> int:
    """n^2 m for m right sides."""
    return math.prod(shape) * right[-1]


@register_flop_formula(torch.ops.aten._linalg_eigh)
def eigh_flops(shape: tuple[int, ...], *_args: Any, **_kwargs: Any) -> int:
    """Golub and Van Loan's count with all vectors: 9 n^3."""
    *rows, n, _ = shape
    return math.prod(rows) * 9 * n**3
