"""The laws of further forms of a registered method, which keeps all laws in two families of models.

What stands around a method (counters, and the turns of threads) does not know its form: for forms, its laws are slow
tests.
"""

from __future__ import annotations

import pytest
from installed import MISSING

from contextlab.testing import laws

AROUND = ("counting", "threads")
"""Laws of what stands around a method."""
ROTARY_ALONE = ("selfextend", "press")
"""Registered methods that refuse models without rotary positions."""
WITHOUT_ROTARY = ("tiny-gpt2", "tiny-opt")
PARTS = [pytest.param(False, id="within"), pytest.param(True, id="around", marks=pytest.mark.slow)]
"""Values of the parameter `around` of a test."""


def broken(make: laws.Make, *families: str, around: bool = False) -> dict[tuple[str, str], str]:
    """What does not hold, by law and model; empty where all laws do.

    Args:
        make: builds the method on a backbone.
        families: of models.
        around: whether the laws of `AROUND` are checked, or all others.
    """
    cases = [case for case in laws.cases(families) if (case.law in AROUND) == around]
    assert cases
    details = {(case.law, case.label): case.broken(make) for case in cases}
    return {name: detail for name, detail in details.items() if detail is not None}


def fits(name: str, family: str) -> bool:
    """Whether a registered method, or a form of one (`NAME, form`), is installed and takes a family of models."""
    method = name.partition(",")[0]
    return method not in MISSING and (method not in ROTARY_ALONE or family not in WITHOUT_ROTARY)
