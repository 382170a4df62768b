from __future__ import annotations

import pytest

from contextlab.harness.stored import minor


@pytest.mark.parametrize("version", ["2.9.1+cpu", "2.9", "2.9.0a0+git1", "2.9rc1"])
def test_of_a_version_two_numbers_count(version: str) -> None:
    assert minor(version) == "2.9"
