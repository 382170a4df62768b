"""Previous window cached: Transformer-XL's recurrence (Dai et al. 2019) with attention sinks (Xiao et al. 2024)."""

from __future__ import annotations

from typing import Literal, TypeAlias

import pydantic

from contextlab.backbone import Backbone
from contextlab.errors import UserError
from contextlab.methods.parts.local_cache import LocalCache
from contextlab.methods.parts.low_rank import LowRankMethod, Targets, twin
from contextlab.methods.parts.packed_cache import FewBits
from contextlab.methods.window import Window, WindowConfig

Local: TypeAlias = Literal["cold", "sliding"]
"""The local context of a method with a memory: of `window`, or of `sliding`."""


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class SlidingConfig(WindowConfig):
    """How much stays in view.

    Attributes:
        N: tokens of a window.
        sinks: first tokens of the text that stay in view, 0 for none.
        recent: last tokens of the windows before that stay in view; a whole window when not given.
    """

    sinks: pydantic.NonNegativeInt = 4
    recent: pydantic.NonNegativeInt | None = None


class Sliding(LowRankMethod[SlidingConfig]):
    """Attends to the current window, the keys and values of the previous one, and the attention sinks."""

    Config = SlidingConfig
    packs_inside = True

    def __init__(self, backbone: Backbone, config: SlidingConfig | None = None) -> None:
        super().__init__(backbone, config)
        config = self.config
        # The window, what stays of those before, and the sinks are in view at once and share the model's positions.
        room = backbone.max_positions - config.sinks - (config.recent or 0)
        if room < 2:
            raise UserError(
                f"Sinks and recent tokens leave no window in {backbone.max_positions} positions: take fewer."
            )
        segment = config.length(room // 2 if config.recent is None else room)
        recent = segment if config.recent is None else config.recent
        self.local = LocalCache(segment, keep_first=config.sinks, keep_last=recent, storage=config.cache)


def local_twin(local: Local, N: int | None, rank: int | Literal["full"] | None, targets: Targets = "attention") -> str:
    """The twin of a method with this local context and a memory."""
    return twin("sliding" if local == "sliding" else "window", N=N, rank=rank, targets=targets)


def local_view(
    backbone: Backbone, local: Local, N: int | None, sinks: int, cache: FewBits | None = None
) -> Window | Sliding:
    """The method that has only the local context of a method with a memory.

    Args:
        backbone: of both.
        local: `cold`, segments start cold; `sliding`, the previous segment and the sinks are kept.
        N: tokens of a segment.
        sinks: first tokens of the text that are kept, with `sliding`.
        cache: type of what is in view; see `CacheConfig`.

    Raises:
        UserError: when it does not fit the backbone.
    """
    if local == "cold":
        return Window(backbone, WindowConfig(N=N, cache=cache))
    return Sliding(backbone, SlidingConfig(N=N, sinks=sinks, cache=cache))
