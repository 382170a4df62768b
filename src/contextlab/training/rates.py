"""Separate learning rates for parts of the learned module."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Sequence

from contextlab.errors import UserError, short


def checked(rates: str) -> str:
    """The setting `rates`, when it holds patterns with factors.

    Raises:
        ValueError: when it does not.
    """
    try:
        wrong = not all(pattern and 0 < factor < math.inf for pattern, factor in _pairs(rates))
    except ValueError:
        wrong = True
    if wrong:
        raise ValueError("write a pattern of names, a colon and a factor above 0, as summaries.*:10")
    return rates


def several(grid: str) -> str:
    """The setting `grid`, when it holds different learning rates.

    Raises:
        ValueError: when it does not.
    """
    try:
        rates = [float(rate) for rate in grid.split("|") if rate]
    except ValueError:
        rates = [math.nan]
    if not all(0 < rate < math.inf for rate in rates) or len(set(rates)) < len(rates):
        raise ValueError("write different rates above 0 between |, as 3e-4|1e-3")
    return grid


def factors(rates: str, names: Sequence[str]) -> list[float]:
    """The factor of the learning rate of every parameter.

    Args:
        rates: patterns of names with factors, as `summaries.*:10|updates.*:2`; the first that fits counts.
        names: of the parameters.

    Raises:
        UserError: for a pattern that fits no parameter.
    """
    of_names = dict.fromkeys(names, 1.0)
    for pattern, factor in reversed(_pairs(rates)):
        fitting = fnmatch.filter(names, pattern)
        if not fitting:
            valid = short(", ".join(names))
            raise UserError(f"No learned parameter fits '{short(pattern)}' of rates={short(rates)}: there are {valid}.")
        of_names.update(dict.fromkeys(fitting, factor))
    return list(of_names.values())


def _pairs(rates: str) -> list[tuple[str, float]]:
    parts = [part.rpartition(":") for part in rates.split("|") if part]
    return [(pattern, float(factor)) for pattern, _, factor in parts]
