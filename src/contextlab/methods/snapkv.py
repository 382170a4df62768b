"""SnapKV (Li et al. 2024): what the last queries of a segment attend to stays, and what lies beside it.

Legend: B rows, K key/value heads, S tokens in view.
"""

from __future__ import annotations

from collections.abc import Sequence

import pydantic
from torch import Tensor
from torch.nn.functional import avg_pool1d

from contextlab.backbone import Backbone
from contextlab.errors import UserError
from contextlab.methods.parts.scored import KeepConfig, ScoredMethod, ScoredState


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class SnapKVConfig(KeepConfig):
    """Which tokens stay in view.

    Attributes:
        window: last tokens of a segment, whose queries vote and which stay.
        kernel: neighbouring tokens over which scores are averaged, an odd number.
    """

    window: pydantic.PositiveInt = 64
    kernel: pydantic.PositiveInt = 5


class SnapKV(ScoredMethod[SnapKVConfig]):
    """Attends to the current segment, and to those of the earlier tokens to which the ends of segments attended most.

    Every segment's end votes again, on all that is in view.
    """

    Config = SnapKVConfig
    accumulates = False

    def __init__(self, backbone: Backbone, config: SnapKVConfig | None = None) -> None:
        super().__init__(backbone, config)
        self.local = self.config.local(backbone)
        self.voters = self.config.window
        most = min(self.local.segment, self.local.keep_last)
        if self.config.window > most:
            raise UserError(
                f"The {self.config.window} tokens that vote must stay, and fit a segment: use window={most}."
            )
        if self.config.kernel % 2 == 0:
            raise UserError(f"kernel={self.config.kernel} has no middle: use an odd number.")

    def importance(self, state: ScoredState) -> Sequence[Tensor]:
        """The averages of scores; those of the last tokens do not enter them."""
        last_B1S, kernel = state.newest_B1S(self.config.window), self.config.kernel
        earlier = (score_BKS.masked_fill(last_B1S, 0.0) for score_BKS in state.score_BKS)
        averages = (avg_pool1d(score_BKS, kernel, stride=1, padding=kernel // 2) for score_BKS in earlier)
        return [average_BKS.masked_fill(last_B1S, float("inf")) for average_BKS in averages]
