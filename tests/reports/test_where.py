from __future__ import annotations

from typing import Any

import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextlab.errors import UserError
from contextlab.reports.where import matching, select

TRAINED = "longmem(K=32) (trained 61.4k)"
ROWS: list[dict[str, Any]] = [
    {"method": "window", "name": "window", "task": "pg22/S2(tokens=8192)", "n": 3, "low": 0.5, "untrained": False},
    {"method": "window(N=512)", "name": "window", "task": "pg22/S1", "n": 4, "low": None, "untrained": False},
    {"method": "hso(loss=s[1])", "name": "hso", "task": "needle/4k", "n": 24, "low": 0.25, "untrained": False},
    {"method": "longmem (untrained)", "name": "longmem", "task": "pg22/S1", "n": 4, "low": 1.5, "untrained": True},
    {
        "method": "longmem(K=32) (trained 61.4k)",
        "name": "longmem",
        "task": "pg22/S1",
        "n": 4,
        "low": 1,
        "untrained": False,
    },
]
SETTINGS: list[dict[str, Any]] = [{}, {"N": 512}, {"loss": "s[1]"}, {"K": 64}, {"K": 32}]


@pytest.fixture
def frame() -> pandas.DataFrame:
    made = pandas.DataFrame(ROWS)
    made["benchmark"] = made.task.str.partition("/")[0]
    made["settings"] = pandas.Series(SETTINGS, dtype="object")
    return made.astype({"n": "Int64", "method": "string", "task": "string", "untrained": "boolean"})


def rows(frame: pandas.DataFrame, *conditions: str) -> list[int]:
    return list(select(frame, conditions).index)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("task=needle/4k", [2]),
        ("task=pg22*", [0, 1, 3, 4]),
        ("task=pg22", [0, 1, 3, 4]),
        ("task!=pg22", [2]),
        ("method=window", [0]),
        ("method=window*", [0, 1]),
        ("method=longmem", [3]),
        ("method=longmem(K=32)", [4]),
        (f"method={TRAINED}", [4]),
        ("method=hso(loss=s[1])", [2]),
        ("method=hso", [2]),
        ("method=window|hso(loss=s[1])", [0, 2]),
        ("name=longmem", [3, 4]),
        ("n>3", [1, 2, 3, 4]),
        ("n >= 4", [1, 2, 3, 4]),
        ("n<4", [0]),
        ("n<=3.5", [0]),
        ("n=3", [0]),
        ("n=3.0|24", [0, 2]),
        ("low>0.2", [0, 2, 3, 4]),
        ("low=0.5", [0]),
        ("low!=0.5", [1, 2, 3, 4]),
        ("untrained=true", [3]),
        ("untrained!=true", [0, 1, 2, 4]),
        ("settings.K=32", [4]),
        ("settings.K>40", [3]),
    ],
)
def test_conditions(frame: pandas.DataFrame, condition: str, expected: list[int]) -> None:
    assert rows(frame, condition) == expected


def test_all_conditions_hold_in_any_order(frame: pandas.DataFrame) -> None:
    assert rows(frame, "task=pg22", "n>3", "name=longmem") == rows(frame, "name=longmem", "n>3", "task=pg22") == [3, 4]
    assert rows(frame) == list(frame.index)


@given(st.floats(-2, 30))
def test_an_order_and_its_opposite_share_out_what_is_there(bound: float) -> None:
    frame = pandas.DataFrame({"low": [0.5, None, 1.0, 24.0, 24.5]})

    def kept(condition: str) -> set[int]:
        try:
            return set(select(frame, [condition]).index)
        except UserError:
            return set()

    below, above = kept(f"low<{bound!r}"), kept(f"low>={bound!r}")
    assert below | above == {0, 2, 3, 4}
    assert not below & above


@given(st.text(alphabet="ab[]()=,.1 ", min_size=1, max_size=8))
def test_every_name_fits_itself(name: str) -> None:
    assert matching(name, [name], ["x"]) == [True]


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        ("tsak=pg22", "did you mean 'task'"),
        ("pg22", "write a column, a sign and a value"),
        ("task=", "write a column, a sign and a value"),
        ("n>many", "write one, as n>3"),
        ("task=squad", "No result fits task=squad: its values are needle/4k, pg22/S1"),
        ("settings.nothing=1", "all its values are missing"),
    ],
)
def test_mistakes_are_one_sentence(frame: pandas.DataFrame, condition: str, words: str) -> None:
    with pytest.raises(UserError) as caught:
        select(frame, [condition])
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_empty_frame_stays_empty() -> None:
    assert select(pandas.DataFrame({"n": []}), ["n>3"]).empty
