from __future__ import annotations

import dataclasses
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextlab import registry
from contextlab.benchmarks.splits import NoSettings, changed, parse, shortest
from contextlab.errors import UserError


@dataclasses.dataclass(frozen=True)
class Some:
    k: int = 3
    way: Literal["short", "long"] = "short"
    upstream: bool = False


SETTINGS = st.builds(Some, st.integers(), st.sampled_from(["short", "long"]), st.booleans())


@given(SETTINGS)
def test_the_shortest_spelling_is_read_back_and_names_only_what_differs(settings: Some) -> None:
    split = shortest("a-name", settings)
    assert parse("task", split, ["a-name"], Some) == ("a-name", settings)
    assert split.count("=") == len(changed(settings))
    assert (split == "a-name") == (settings == Some())


@given(st.text())
def test_whatever_is_written_gives_settings_or_one_sentence(rest: str) -> None:
    for kind in (Some, NoSettings):
        try:
            answer: Any = parse("task", f"name:{rest}", ["name"], kind)
        except UserError as error:
            answer = str(error)
        assert answer[-1] in (".", "?") if isinstance(answer, str) else isinstance(answer[1], kind)


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ("nome", "There is no split of task 'nome': did you mean 'name'"),
        ("name:key=1", "There is no setting of task 'key'"),
        ("name:k=many", "k=many in --split is not valid"),
        ("name:k", "k= in --split is not valid"),
        ("name:way=best", "way=best in --split is not valid"),
        ("name:upstream=perhaps", "upstream=perhaps in --split is not valid"),
        ("name:k=1,k=2", "A setting stands twice behind name"),
    ],
)
def test_what_does_not_do_is_refused(split: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse("task", split, ["name"], Some)


def test_a_name_may_hold_a_colon() -> None:
    assert parse("task", "a:b", ["a:b"], Some) == ("a:b", Some())


def test_a_task_without_settings_says_so() -> None:
    with pytest.raises(UserError, match="The splits of task take no settings: write name without"):
        parse("task", "name:k=1", ["name"], NoSettings)


@pytest.mark.parametrize("name", sorted(registry.tasks()))
def test_every_task_checks_what_stands_behind_its_splits(name: str) -> None:
    task: Any = registry.task(name)
    assert task.check_split(None) == task.check_split(f"{task.default_split}:") == task.default_split
    with pytest.raises(UserError, match=f"setting of {name} 'nonsense'|splits of {name} take no settings"):
        task.check_split(f"{task.default_split}:nonsense=1")
