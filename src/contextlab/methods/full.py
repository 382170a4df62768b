"""Full attention: all of the context, as far as the model's positions reach; then it starts again."""

from __future__ import annotations

from typing import ClassVar

import pydantic

from contextlab.backbone import Backbone
from contextlab.method import Capabilities
from contextlab.methods.local_cache import CacheConfig, LocalCache
from contextlab.methods.low_rank import LowRankConfig, LowRankMethod


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class FullConfig(CacheConfig, LowRankConfig):
    """How the cache is stored, and the low-rank update."""

    free_at_test: ClassVar[frozenset[str]] = frozenset({"cache"})


class Full(LowRankMethod[FullConfig]):
    """Attends to the whole context; a context longer than the model's positions is read in blocks of that length."""

    Config = FullConfig

    def __init__(self, backbone: Backbone, config: FullConfig | None = None) -> None:
        super().__init__(backbone, config)
        self.local = LocalCache(backbone.max_positions, storage=self.config.cache)

    @property
    def capabilities(self) -> Capabilities:
        """Exact streaming up to the model's positions."""
        return Capabilities(max_context=self.local.segment, few_bits=self.local.storage is not None)
