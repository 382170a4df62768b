from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stored_runs import result, three

from contextlab.errors import UserError
from contextlab.reports.limits import Limit, under


@pytest.mark.parametrize(
    ("text", "most"),
    [
        ("state=32MB", 32e6),
        ("state = 32 MiB", 32 * 2**20),
        ("peak<=1.5GB", 1.5e9),
        ("flops<1TFLOP", 1e12),
        ("query=2e3GFLOPs", 2e12),
        ("seconds=3min", 180.0),
    ],
)
def test_limits_have_units(text: str, most: float) -> None:
    assert Limit.parse(text).most == pytest.approx(most)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("state", "is no limit"),
        ("state=many", "is no limit"),
        ("stat=3MB", "did you mean 'state'"),
        ("state=3TFLOP", "There is no unit of state 'TFLOP'"),
        ("state=3", "There is no unit of state ''"),
    ],
)
def test_a_mistake_is_one_sentence(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Limit.parse(text)


def test_only_what_costs_no_more_is_left() -> None:
    large = result("large", state={"bytes": 2**21, "floats": 1, "tokens": 1})
    runs = [*three(), large, result("stateless", state=None)]
    assert [one.method for one in under(runs, [Limit.parse("state=1MiB")])] == ["window", "sliding", "full"]
    assert under(runs, []) == runs
    assert under(runs, [Limit.parse("flops=2.5TFLOP"), Limit.parse("state=3MB")]) == runs[:4]
    with pytest.raises(UserError, match="No result is under state=1kB: raise the limit"):
        under(runs, [Limit.parse("state=1kB")])


@given(st.floats(0, 1e9), st.floats(0, 1e9))
def test_a_higher_limit_leaves_no_fewer(a: float, b: float) -> None:
    sizes = [result(str(n), state={"bytes": 10**n, "floats": 1, "tokens": 1}) for n in range(9)]
    fewer, more = ({one.method for one in sizes if Limit("state", most, "").holds(one)} for most in sorted((a, b)))
    assert fewer <= more
