from __future__ import annotations

from typing import Any

import pytest
from stored_runs import result, three

from contextlab.errors import UserError
from contextlab.reports.alike import check_alike
from contextlab.reports.selected import selected


def with_provenance(**changes: str) -> dict[str, Any]:
    one = result("other")
    return one | {"provenance": one["provenance"] | changes}


OTHER_DATA = result("other", data=result()["data"] | {"sha256": "b" * 64})


def test_results_of_the_same_data_prompts_and_counting_are_alike() -> None:
    check_alike([*three(), result("full", task="squad", data=OTHER_DATA["data"])])
    check_alike([])


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            OTHER_DATA,
            r"pg22/S2 has .* different data \(aaaaaaaa in .*bbbbbbbb in other-.*--where 'data=aaaaaaaa\*'",
        ),
        (with_provenance(prompt_sha256="c" * 64), r"pg22/S2 with context own has results with different prompts"),
        (with_provenance(contextlab="0.2"), "The table has results with different counting .*--mixed"),
    ],
)
def test_what_differs_is_named_in_one_sentence(other: dict[str, Any], message: str) -> None:
    known = {"contextlab": "0.1", "prompt_sha256": "p" * 64}
    runs = [one | {"provenance": one["provenance"] | known} for one in three()]
    with pytest.raises(UserError, match=message) as caught:
        check_alike([*runs, other])
    assert str(caught.value).count("\n") == 0


def test_controls_may_have_other_prompts() -> None:
    own = with_provenance(prompt_sha256="c" * 64)
    check_alike([own, with_provenance(prompt_sha256="d" * 64) | {"context": "none"}])


def test_the_condition_that_it_proposes_works() -> None:
    mixed = [*three(), OTHER_DATA]
    with pytest.raises(UserError) as caught:
        check_alike(mixed)
    condition = str(caught.value).split("--where '")[1].split("'")[0]
    left = selected(mixed, [condition])
    check_alike(left)
    assert len(left) == 3
