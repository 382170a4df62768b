"""Which methods are composed, each named with its settings as on the command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias, TypeVar

import pydantic

from contextlab import grammar, trained
from contextlab.backbone import Backbone
from contextlab.errors import UserError, unknown
from contextlab.method import AnyMethod, MethodConfig
from contextlab.methods.evalm import EVALM
from contextlab.methods.full import Full
from contextlab.methods.generative_adapter import GenerativeAdapter
from contextlab.methods.h2o import H2O
from contextlab.methods.least_squares import LeastSquares
from contextlab.methods.parts.context_weights import WeightsMethod
from contextlab.methods.parts.segments import SegmentMethod
from contextlab.methods.retrieval import Retrieval
from contextlab.methods.selfextend import SelfExtend
from contextlab.methods.sinks import Sinks
from contextlab.methods.sliding import Sliding
from contextlab.methods.snapkv import SnapKV
from contextlab.methods.window import Window

AnyCache: TypeAlias = SegmentMethod[Any, Any]
AnyWeights: TypeAlias = WeightsMethod[Any, Any]
M = TypeVar("M", bound=AnyMethod)

CACHES: dict[str, type[AnyCache]] = {
    "full": Full,
    "window": Window,
    "sliding": Sliding,
    "sinks": Sinks,
    "snapkv": SnapKV,
    "h2o": H2O,
    "selfextend": SelfExtend,
    "retrieval": Retrieval,
    "evalm": EVALM,
}
"""Methods whose passes have one row for every row of a state, so that each row has its own weights in them."""
WEIGHTS: dict[str, type[AnyWeights]] = {"generative-adapter": GenerativeAdapter, "least-squares": LeastSquares}


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class ComposedConfig(MethodConfig):
    """The two methods.

    Attributes:
        method: that reads, with its settings; full, window, sliding, sinks, snapkv, h2o, selfextend, retrieval or
            evalm.
        under: that makes the weights it reads with, with its settings; generative-adapter, least-squares, or the name
            of trained weights.
    """

    method: str = "sliding"
    under: str = "generative-adapter"

    def __post_init__(self) -> None:
        """Check both names and their settings."""
        _named(self.method, CACHES)
        _named(self.under, WEIGHTS)

    def cache(self, backbone: Backbone) -> AnyCache:
        """The method that reads.

        Raises:
            UserError: when it has weights of its own beside the backbone's, or does not fit the backbone.
        """
        kind, config = _named(self.method, CACHES)
        method = kind(backbone, config)
        if method.network is not backbone:
            raise UserError(
                f"{self.method} reads with other weights or positions than the backbone's: leave its rank and rope out."
            )
        return method

    def weights(self, backbone: Backbone) -> AnyWeights:
        """The method that makes weights.

        Raises:
            UserError: when it does not fit the backbone.
        """
        kind, config = _named(self.under, WEIGHTS)
        return kind(backbone, config)


def _named(text: str, kinds: Mapping[str, type[M]]) -> tuple[type[M], MethodConfig]:
    """The class and the settings of a method, or of the method that trained weights belong to."""
    item = grammar.single(text, "method")
    weights = None if item.name in kinds else trained.find(item.name)
    name, settings = item.name, dict(item.settings)
    if weights is not None:
        name, settings = weights.card.method, {**weights.card.named, **settings, "weights": weights.file}
    if name not in kinds:
        raise unknown("method to compose", item.name, kinds)
    return kinds[name], kinds[name].Config.parse(settings, item.name)
