from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextlab import grammar, registry
from contextlab.config import REQUIRED, Config, MethodConfig, Setting, alike, described, meanings
from contextlab.errors import UserError

frozen = pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))


@frozen
class Base(Config):
    """Base of other configurations.

    Attributes:
        N: tokens of a window; as many as
            fit when not given.
        hidden: described here alone.
    """

    N: pydantic.PositiveInt | None = None
    hidden: bool = False


@frozen
class Some(Base):
    """Further fields.

    Attributes:
        way: `short` or `long`.
        share: of the way, to the end.
        N: tokens of a segment.
        files: that are read.

    Nothing of this: is a field.
    """

    way: Literal["short", "long", ""] = "short"
    share: Annotated[float, pydantic.Field(gt=0, le=1)] = 0.5
    files: list[Path] = dataclasses.field(default_factory=list)


@frozen
class Brief(MethodConfig):
    """steps: gradient steps, at least one."""

    steps: int
    plain: str = "a,b"


@frozen
class Alike(Config):
    """steps: gradient steps (two at most)."""

    steps: int = 1
    N: int = 3
    plain: str = ""


CONFIGS = {
    **{f"method {name}": registry.method_class(name).Config for name in registry.methods()},
    **{f"task {name}": registry.task_class(name).Config for name in registry.tasks()},
}


@pytest.mark.parametrize("name", CONFIGS)
def test_every_setting_that_is_built_in_is_described(name: str) -> None:
    assert [setting.name for setting in described(CONFIGS[name]) if not setting.about] == []


@pytest.mark.parametrize("name", CONFIGS)
def test_described_defaults_are_parsed_to_the_defaults(name: str) -> None:
    kind = CONFIGS[name]
    defaults = {setting.name: grammar.value(setting.default, name) for setting in described(kind)}
    filled = {key: value for key, value in defaults.items() if value is not None}
    assert kind.parse(filled) == kind()


def test_settings_are_described_in_words() -> None:
    settings = described(Some)
    assert settings == [
        Setting("N", "integer > 0 or null", "null", "tokens of a segment."),
        Setting("hidden", "boolean", "false", "described here alone."),
        Setting("way", "short | long | ''", "short", "`short` or `long`."),
        Setting("share", "number > 0, <= 1", "0.5", "of the way, to the end."),
        Setting("files", "array", "[]", "that are read."),
    ]
    assert described(Brief) == [
        Setting("steps", "integer", REQUIRED, "gradient steps, at least one."),
        Setting("plain", "text", "'a,b'", ""),
    ]
    assert described(Config) == []


def test_a_meaning_may_go_on_in_the_next_line() -> None:
    assert meanings(Base)["N"] == "tokens of a window; as many as fit when not given."


def test_fields_are_alike_where_one_class_or_one_meaning_is_behind_them() -> None:
    assert alike(Base, Some, "N")
    assert alike(Brief, Alike, "steps")
    assert not alike(Some, Alike, "N")
    assert not alike(Brief, Alike, "plain")


def test_what_the_built_in_settings_of_one_name_share_is_known() -> None:
    """A change of a description changes whether two settings mean the same only on purpose."""
    by_name: dict[str, list[str]] = {}
    for owner, kind in CONFIGS.items():
        for field in dataclasses.fields(kind):
            by_name.setdefault(field.name, []).append(owner)
    different = {
        name
        for name, owners in by_name.items()
        for setting in owners
        for other in owners
        if not alike(CONFIGS[setting], CONFIGS[other], name)
    }
    assert {"N", "sinks", "tokens", "history"} & different == set()
    of_papers = {"lr", "beta1", "beta2", "eps", "steps", "eviction", "recent", "k", "upstream", "M", "W", "ratio"}
    of_papers |= {"alpha", "batch", "context", "decay", "rule", "seed", "memory", "n"}
    of_files = {"path", "prompt", "scoring", "cluster", "lines"}
    assert different == of_papers | of_files | {"weights", "rank", "gate", "storage_dtype", "cache", "answer"}


@given(
    st.builds(
        dict,
        N=st.none() | st.integers(1, 10**6),
        way=st.sampled_from(["short", "long", ""]),
        share=st.floats(0.001, 1),
        hidden=st.booleans(),
    )
)
def test_what_differs_from_the_defaults_is_read_back(values: dict[str, Any]) -> None:
    config = Some.parse(values)
    text = grammar.spelled("some", None, config.changed())
    assert Some.parse(grammar.single(text, "method").settings) == config
    assert set(config.changed()) == {name for name, value in values.items() if value != getattr(Some(), name)}


def test_a_configuration_without_defaults_describes_all_its_fields() -> None:
    assert Brief(steps=2).changed() == {"steps": 2, "plain": "a,b"}


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (Some, {"shares": 1}, "There is no setting of some 'shares': did you mean 'share'?"),
        (Some, {"share": "2"}, "Setting share='2' of some is not valid: input should be less than or equal to 1."),
        (Some, {"N": 10**20}, "of some is not valid: give a number below 2.81475e+14."),
        (Brief, {}, "Setting steps of some has no default: give it as steps=value."),
        (Config, {"a": 1}, "There are no settings of some: leave a out."),
    ],
)
def test_what_does_not_do_names_its_owner(kind: type[Config], settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        kind.parse(settings, "some")
    assert message in str(error.value)
