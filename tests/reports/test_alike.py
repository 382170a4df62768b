from __future__ import annotations

from typing import Any

import pytest
from stored_runs import result, three

from contextlab.errors import UserError
from contextlab.harness.stored import Result
from contextlab.reports.alike import check_alike
from contextlab.reports.selected import selected

OTHER_DATA = result("other", data={"sha256": "b" * 64})


def with_provenance(**changes: Any) -> Result:
    return result("other", provenance=changes)


def test_results_of_the_same_data_prompts_and_counting_are_alike() -> None:
    check_alike([*three(), result("full", task="squad", data={"sha256": "b" * 64})])
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
def test_what_differs_is_named_in_one_sentence(other: Result, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        check_alike([*three(), other])
    assert str(caught.value).count("\n") == 0


def test_controls_may_have_other_prompts() -> None:
    own, none = ({"prompt_sha256": letter * 64} for letter in "cd")
    check_alike([result("other", provenance=own), result("other", provenance=none, context="none")])


def test_the_condition_that_it_proposes_works() -> None:
    mixed = [*three(), OTHER_DATA]
    with pytest.raises(UserError) as caught:
        check_alike(mixed)
    condition = str(caught.value).split("--where '")[1].split("'")[0]
    left = selected(mixed, [condition])
    check_alike(left)
    assert len(left) == 3
