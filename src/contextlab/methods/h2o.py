"""H2O (Zhang et al. 2023): heavy hitters, the tokens with the most attention so far, and the most recent tokens.

Legend: B rows, K key/value heads, S tokens in view.
"""

from __future__ import annotations

from collections.abc import Sequence

import pydantic
from torch import Tensor

from contextlab.backbone import Backbone
from contextlab.errors import UserError
from contextlab.methods.parts.scored import KeepConfig, ScoredMethod, ScoredState


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class H2OConfig(KeepConfig):
    """Which tokens stay in view.

    Attributes:
        recent: newest tokens, which stay whatever their scores; half of what stays when not given.
    """

    recent: pydantic.NonNegativeInt | None = None


class H2O(ScoredMethod[H2OConfig]):
    """Attends to the current segment, to the newest tokens before it, and to those with the most attention so far."""

    Config = H2OConfig

    def __init__(self, backbone: Backbone, config: H2OConfig | None = None) -> None:
        super().__init__(backbone, config)
        self.local = self.config.local(backbone)
        keep, recent = self.local.keep_last, self.config.recent
        if recent is not None and recent > keep:
            raise UserError(f"{recent} recent tokens are more than stay in view: use recent={keep} or a larger keep.")
        self.recent = keep // 2 if recent is None else recent

    def importance(self, state: ScoredState) -> Sequence[Tensor]:
        """The sums of attention, and infinity for the newest tokens."""
        newest_B1S = state.newest_B1S(self.recent)
        return [score_BKS.masked_fill(newest_B1S, float("inf")) for score_BKS in state.score_BKS]
