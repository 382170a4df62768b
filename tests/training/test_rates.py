from __future__ import annotations

import pytest

from contextlab.errors import UserError
from contextlab.training import rates

NAMES = ["summaries.0.phi_D", "summaries.0.mu_k.weight", "updates.0.a"]


def test_the_first_pattern_that_fits_counts() -> None:
    assert rates.factors("", NAMES) == [1, 1, 1]
    assert rates.factors("summaries.*:10", NAMES) == [10, 10, 1]
    assert rates.factors("*.phi_D:3|summaries.*:10|updates.*:.5", NAMES) == [3, 10, 0.5]


def test_a_pattern_that_fits_nothing_is_refused() -> None:
    with pytest.raises(UserError, match=r"No learned parameter fits 'gates\.\*'.*there are summaries\.0\.phi_D"):
        rates.factors("summaries.*:10|gates.*:2", NAMES)


@pytest.mark.parametrize("text", ["summaries", "summaries.*:", ":2", "a:b", "a:0", "a:-1", "a:inf", "a:nan"])
def test_anything_else_is_not_a_rate(text: str) -> None:
    with pytest.raises(ValueError, match="write a pattern of names"):
        rates.checked(text)
