"""The laws that every context method obeys, for the tests of those who write one.

`check` runs them all; with pytest, `@pytest.mark.laws_of("mine.py:Mine")` makes a test of each (`testing.plugin`).
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
    # pytest imports this package whenever it starts, and the laws bring torch with them.
    if name in __all__:
        from contextlab.testing import laws

        return getattr(laws, name)
    raise AttributeError(f"module 'contextlab.testing' has no attribute '{name}'")
