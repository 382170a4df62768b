"""TRIME's hyper-parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pydantic

from contextlab.methods.parts.local_cache import CacheConfig, LocalConfig
from contextlab.methods.parts.low_rank import LowRankConfig


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class TRIMEConfig(LocalConfig, LowRankConfig, CacheConfig):
    """The paper's hyper-parameters, and how much of the backbone is trained.

    Attributes:
        N: tokens of a segment, the local context; all of its earlier positions are local memory.
        M: positions of the segments before that are long memory, the newest; 12,288 as in the paper, 0 for none.
        temperature: what memory logits are divided by; 1 in training, and tuned (1.03 to 1.25) in the paper's tests.
        rank: of the low-rank update of all layers, 0 to train nothing.
    """

    # A batch begins without memory and holds as many segments as the paper's, whose 12,288 positions are four of them:
    # every representation in memory is of the present weights and gets a gradient.
    training_defaults: ClassVar[Mapping[str, Any]] = {"segments": 4, "rows": 1, "sequence": "segment"}
    free_at_test: ClassVar[frozenset[str]] = frozenset({"N", "M", "cache", "temperature"})

    M: pydantic.NonNegativeInt = 12288
    temperature: pydantic.PositiveFloat = 1.0
    rank: pydantic.NonNegativeInt = 16
