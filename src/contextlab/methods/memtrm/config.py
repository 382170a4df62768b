"""Memorizing Transformer's hyper-parameters."""

from __future__ import annotations

from typing import ClassVar, Literal

import pydantic

from contextlab.methods.parts.local_cache import CacheConfig, LocalConfig
from contextlab.methods.parts.low_rank import LowRankConfig
from contextlab.methods.sliding import Local


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class MemTRMConfig(LocalConfig, LowRankConfig, CacheConfig):
    """The paper's hyper-parameters, and how much of the backbone is trained.

    Attributes:
        N: tokens of a segment, the local context.
        M: tokens the bank holds per row.
        K: tokens retrieved per query and head.
        memory_layer: zero-based backbone layer whose keys and values are cached, and which attends to the bank; three
            quarters up when not given (the 18th of 24 in LongMem's comparison).
        gate: initial gate of every head, whose sigmoid is the weight of the memory; 0 in the paper, and -20 makes the
            untrained method its local attention alone.
        local: `cold`, a segment attends to itself; or `sliding`, also to the segment before and to the sinks.
        sinks: first tokens of the text that stay in view, with local=sliding.
        storage_dtype: type of the cached keys and values.
        rank: of the low-rank update of the memory layer and of those above it, 0 to train the gate alone.
    """

    free_at_test: ClassVar[frozenset[str]] = frozenset({"N", "M", "K", "cache"})

    M: pydantic.PositiveInt = 65536
    K: pydantic.PositiveInt = 32
    memory_layer: pydantic.NonNegativeInt | None = None
    gate: float = pydantic.Field(default=0.0, ge=-100, le=100)
    local: Local = "cold"
    sinks: pydantic.NonNegativeInt = 4
    storage_dtype: Literal["float16", "bfloat16", "float32"] = "float16"
    rank: pydantic.NonNegativeInt = 16
