"""Truncated context: non-overlapping local windows, the baseline of the papers."""

from __future__ import annotations

from typing import ClassVar

import pydantic

from contextlab.backbone import Backbone
from contextlab.errors import UserError
from contextlab.method import Capabilities, MethodConfig
from contextlab.methods.local_cache import LocalCache
from contextlab.methods.low_rank import LowRankConfig, LowRankMethod


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class LocalConfig(MethodConfig):
    """N: tokens of a window; 1,024 or as many as the model has positions when not given."""

    N: pydantic.PositiveInt | None = None

    def length(self, positions: int) -> int:
        """Tokens of a window on a model with that many positions.

        Raises:
            UserError: when the window asked for does not fit.
        """
        if self.N is not None and positions < self.N:
            raise UserError(
                f"A window of {self.N} tokens does not fit the model's {positions} positions: use N={positions}."
            )
        return self.N or min(1024, positions)


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class WindowConfig(LocalConfig, LowRankConfig):
    """How much is in view, and the low-rank update."""

    free_at_test: ClassVar[frozenset[str]] = frozenset({"N"})


class Window(LowRankMethod[WindowConfig]):
    """Attends to the current window of N tokens only; every window starts cold."""

    Config = WindowConfig

    def __init__(self, backbone: Backbone, config: WindowConfig | None = None) -> None:
        super().__init__(backbone, config)
        self.local = LocalCache(self.config.length(backbone.max_positions))

    @property
    def capabilities(self) -> Capabilities:
        """Segments start cold, so a protocol may place their boundaries (last-N)."""
        return Capabilities(segment=self.local.segment)
