"""A pytest plugin that makes a test of every law, for a test function with a marker that calls `law`.

@pytest.mark.laws_of("mine.py:Mine", K=8)
def test_laws(law):
    law()
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from contextlab.testing.laws import Case

MARKER = "laws_of"


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", f"{MARKER}(method, **settings): check every law of a contextlab method")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each law and family; the method is a registered name, `path.py:Class`, or a class."""
    marker = metafunc.definition.get_closest_marker(MARKER)
    if marker is None or "law" not in metafunc.fixturenames:
        return
    from contextlab.testing.laws import cases

    (method,) = marker.args
    params = [
        pytest.param(functools.partial(_hold, case, method, marker.kwargs), id=f"{case.label}-{case.law}")
        for case in cases()
    ]
    metafunc.parametrize("law", params)


def _hold(case: Case, method: Any, settings: Mapping[str, Any]) -> None:
    """Fail with the description of the failure."""
    from contextlab import registry

    kind = registry.method_class(method) if isinstance(method, str) else method
    broken = case.broken(lambda backbone: kind(backbone, kind.Config.parse(settings)))
    if broken is not None:
        pytest.fail(f"{case.law} ({case.label}): {broken}", pytrace=False)
