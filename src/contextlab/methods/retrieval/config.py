"""Settings of retrieval."""

from __future__ import annotations

from typing import ClassVar

import pydantic

from contextlab.config import Weights
from contextlab.errors import UserError
from contextlab.kernels.chunk_topk import Index
from contextlab.methods.parts.banks import StoredIn
from contextlab.methods.parts.few_bits import Storage
from contextlab.methods.parts.local_cache import CacheConfig, LocalConfig
from contextlab.methods.parts.packed_banks import check_size
from contextlab.trained import CHOICES


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(extra="forbid"))
class RetrievalConfig(LocalConfig, CacheConfig):
    """The local view, the bank, and what is learned.

    Attributes:
        N: tokens of a window; the previous one stays in view too.
        sinks: first tokens of the text that stay in view, 0 for none.
        M: tokens the bank holds per row, the newest.
        K: tokens retrieved per query and head.
        csz: tokens of a chunk.
        representatives: tokens that stand for a chunk in a search, those whose keys have the highest mean inner product
            with the queries of the next N tokens (InfLLM); all tokens, by their mean key, when not given.
        shared: whether all heads of a layer take the same chunks, those with the highest sum over heads (InfLLM).
        first_layer: zero-based, the lowest layer that retrieves; a third of the depth when not given.
        every: layers from one that retrieves to the next, from `first_layer` to the top; 1 for all.
        storage_dtype: type of the stored keys and values; `int8` or `int4` for that many bits, keys with a range per
            channel and group of tokens, values with one per token; the model's own when not given.
        stored_in: of the bank; `memory` of the device; `host` for that of the host, from which the chunks that are
            retrieved go to the device; or `disk` for files in the cache folder that are mapped into memory, on a CPU.
        index: that searches the bank; `exact`, or `faiss` for its exact search on a CPU, which needs faiss-cpu.
        rank: of the learned change of queries and keys of attention to the bank, which has a learned bias per head too;
            0 for the bias alone; nothing is learned when not given.
        weights: what was learned with that rank: `auto`, what comes with the package, where some fits; `none`, as
            initialised; or a file, or the folder of a training run.
    """

    free_at_test: ClassVar[frozenset[str]] = frozenset(
        {"N", "M", "K", "cache", "csz", "storage_dtype", "stored_in", "index"}
    )

    sinks: pydantic.NonNegativeInt = 4
    M: pydantic.PositiveInt = 65536
    K: pydantic.PositiveInt = 64
    csz: pydantic.PositiveInt = 4
    representatives: pydantic.PositiveInt | None = None
    shared: bool = False
    first_layer: pydantic.NonNegativeInt | None = None
    every: pydantic.PositiveInt = 1
    storage_dtype: Storage | None = None
    stored_in: StoredIn = "memory"
    index: Index = "exact"
    rank: pydantic.NonNegativeInt | None = None
    weights: Weights = "auto"

    def __post_init__(self) -> None:
        """Check fields that depend on each other."""
        if self.K % self.csz or self.M % self.csz:
            raise UserError(f"K={self.K} and M={self.M} must be multiples of the chunk size csz={self.csz}.")
        check_size(self.M, self.csz, self.storage_dtype)
        if (self.representatives or 0) > self.csz:
            raise UserError(
                f"representatives={self.representatives} are more than the csz={self.csz} tokens of a chunk."
            )
        if self.weights not in CHOICES and self.rank is None:
            raise UserError("weights= needs the rank that they were trained with: set rank as well.")
