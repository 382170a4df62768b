"""Previous window cached: Transformer-XL's recurrence (Dai et al. 2019) with attention sinks (Xiao et al. 2024)."""

from __future__ import annotations

import pydantic

from contextlab.backbone import Backbone
from contextlab.method import Capabilities
from contextlab.methods.segments import SegmentMethod
from contextlab.methods.window import WindowConfig


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class SlidingConfig(WindowConfig):
    """N: tokens of a window; sinks: first tokens of the text that stay in view, 0 for none."""

    sinks: pydantic.NonNegativeInt = 4


class Sliding(SegmentMethod):
    """Attends to the current window, the keys and values of the previous one, and the attention sinks."""

    Config = SlidingConfig

    def __init__(self, backbone: Backbone, config: SlidingConfig | None = None) -> None:
        super().__init__(backbone, config)
        config = config or SlidingConfig()
        # Two windows and the sinks are in view at once and share the model's positions.
        self.segment = self.keep_last = config.length((backbone.max_positions - config.sinks) // 2)
        self.keep_first = config.sinks

    @property
    def capabilities(self) -> Capabilities:
        """Exact streaming of any length."""
        return Capabilities()
