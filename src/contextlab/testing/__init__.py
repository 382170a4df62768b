"""The laws of context methods, for tests of new methods.

`check` runs them all. With pytest, `@pytest.mark.laws_of("mine.py:Mine")` makes a test of each (`testing.plugin`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contextlab.testing.laws import Case as Case
    from contextlab.testing.laws import LawResult as LawResult
    from contextlab.testing.laws import cases as cases
    from contextlab.testing.laws import check as check

__all__ = ["Case", "LawResult", "cases", "check"]


def __getattr__(name: str) -> Any:
    # pytest imports this package at every start, and the laws import torch.
    if name in __all__:
        from contextlab.testing import laws

        return getattr(laws, name)
    raise AttributeError(f"module 'contextlab.testing' has no attribute '{name}'")
