"""Settings of a press."""

from __future__ import annotations

from typing import Literal, TypeAlias

import pydantic

from contextlab.methods.local_cache import LocalConfig

Parameter: TypeAlias = bool | int | float | str | None


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
    options: dict[str, Parameter] = pydantic.Field(default_factory=dict)
