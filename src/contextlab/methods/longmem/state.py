"""The state of LongMem between calls."""

from __future__ import annotations

import dataclasses
from typing import Self

from contextlab.attention import KV
from contextlab.methods.parts.local_cache import LocalState
from contextlab.methods.parts.packed_banks import Bank


@dataclasses.dataclass(frozen=True)
class LongMemState(LocalState):
    """The caches of what is in view, and the bank; a question attends to K more tokens of it than are `cached`.

    Attributes:
        side_kv: side network keys and values in view; `kv` holds the backbone's.
        bank: chunks of what is not in view any more, for every side block that retrieves.
    """

    side_kv: KV
    bank: Bank

    @property
    def caches(self) -> tuple[KV, ...]:
        """Of the backbone, and of the side network."""
        return self.kv, self.side_kv

    def with_caches(self, *caches: KV) -> Self:
        """The state with other caches, in the order of `caches`."""
        kv, side_kv = caches
        return dataclasses.replace(self, kv=kv, side_kv=side_kv)
