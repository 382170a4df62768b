"""Full attention: all of the context, as far as the model's positions reach; then it starts again."""

from __future__ import annotations

from contextlab.backbone import Backbone
from contextlab.method import Capabilities
from contextlab.methods.local_cache import LocalCache
from contextlab.methods.low_rank import LowRankConfig, LowRankMethod


class Full(LowRankMethod[LowRankConfig]):
    """Attends to the whole context; a context longer than the model's positions is read in blocks of that length."""

    Config = LowRankConfig

    def __init__(self, backbone: Backbone, config: LowRankConfig | None = None) -> None:
        super().__init__(backbone, config)
        self.local = LocalCache(backbone.max_positions)

    @property
    def capabilities(self) -> Capabilities:
        """Exact streaming up to the model's positions."""
        return Capabilities(max_context=self.local.segment)
