"""Settings of a press."""

from __future__ import annotations

import json
from typing import Annotated, Literal, TypeAlias

import pydantic

from contextlab.methods.parts.local_cache import LocalConfig

Parameter: TypeAlias = bool | int | float | str | None


def _object(value: object) -> object:
    """What a text says, where it is a JSON object."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class PressConfig(LocalConfig):
    """Which press drops tokens, how many, and when.

    Attributes:
        N: tokens of a window, with `when=window`; 1,024 or as many as the model has positions for when not given.
        name: of the press, as kvpress names it, without its ending: `SnapKV`; of one around another `Block(KeyDiff)`.
        ratio: share of the tokens in view that every head drops.
        when: `context`, once, at the end of a context of known length; `window`, at the end of every N tokens.
        options: parameters of the press by the names that kvpress gives them, as a JSON object.
    """

    name: str = "SnapKV"
    ratio: float = pydantic.Field(default=0.5, gt=0, lt=1)
    when: Literal["context", "window"] = "context"
    options: Annotated[dict[str, Parameter], pydantic.BeforeValidator(_object)] = pydantic.Field(default_factory=dict)
