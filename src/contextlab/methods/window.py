"""Truncated context: non-overlapping local windows, the baseline of the papers."""

from __future__ import annotations

from typing import ClassVar

import pydantic

from contextlab.backbone import Backbone
from contextlab.methods.parts.local_cache import CacheConfig, LocalCache, LocalConfig
from contextlab.methods.parts.low_rank import LowRankConfig, LowRankMethod


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class WindowConfig(LocalConfig, CacheConfig, LowRankConfig):
    """How much is in view, and the low-rank update."""

    free_at_test: ClassVar[frozenset[str]] = frozenset({"N", "cache"})


class Window(LowRankMethod[WindowConfig]):
    """Attends to the current window of N tokens only; every window starts cold."""

    Config = WindowConfig
    packs_inside = True

    def __init__(self, backbone: Backbone, config: WindowConfig | None = None) -> None:
        super().__init__(backbone, config)
        self.local = LocalCache(self.config.length(backbone.max_positions), storage=self.config.cache)
