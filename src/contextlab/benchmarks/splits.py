"""The grammar of splits: a name, and behind a colon the settings that differ, as in `sst2:k=4,template=evalm`."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any, TypeVar

from contextlab.errors import UserError, unknown

S = TypeVar("S")


@dataclasses.dataclass(frozen=True)
class NoSettings:
    """Of a task whose splits take no settings."""


def parse(task: str, split: str, names: Collection[str], kind: type[S]) -> tuple[str, S]:
    """The name and the settings that a split consists of.

    Args:
        task: for the errors.
        split: as the user spelled it.
        names: that a split may begin with.
        kind: frozen dataclass of the settings, all with defaults; pydantic validates its annotations.

    Raises:
        UserError: for an unknown name, or a setting that is unknown, given twice, or not valid.
    """
    # A task of somebody else's may have colons in its names.
    name, _, rest = (split, "", "") if split in names else split.partition(":")
    if name not in names:
        raise unknown(f"split of {task}", name, names)
    return name, _settings(task, name, [pair.partition("=")[::2] for pair in rest.split(",") if pair], kind)


def shortest(name: str, settings: Any) -> str:
    """The spelling of a split that names only the settings that differ from the defaults, in their order."""
    pairs = ",".join(f"{key}={_spelled(value)}" for key, value in changed(settings).items())
    return f"{name}:{pairs}" if pairs else name


def changed(settings: Any) -> dict[str, Any]:
    """The settings that differ from the defaults, in their order."""
    default = type(settings)()
    pairs = ((field.name, getattr(settings, field.name)) for field in dataclasses.fields(settings))
    return {name: value for name, value in pairs if value != getattr(default, name)}


def _settings(task: str, name: str, pairs: list[tuple[str, str]], kind: type[S]) -> S:
    known = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    for key, _ in pairs:
        if not known:
            raise UserError(f"The splits of {task} take no settings: write {name} without what follows the colon.")
        if key not in known:
            raise unknown(f"setting of {task}", key, known)
    if len(dict(pairs)) < len(pairs):
        raise UserError(f"A setting stands twice behind {name} in --split: keep one of the two.")
    if not pairs:
        return kind()
    # Here and not above, so that tasks can be listed without it.
    import pydantic

    try:
        return pydantic.TypeAdapter(kind).validate_python(dict(pairs))
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        where, reason = f"{first['loc'][0]}={first['input']}", first["msg"].lower()
        raise UserError(f"{where} in --split is not valid: {reason}.") from None


def _spelled(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
