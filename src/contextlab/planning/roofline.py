"""The shortest time that a GPU can need: the slowest of its arithmetic, its memory and its launches."""

from __future__ import annotations

import dataclasses
from typing import Literal

from contextlab.planning.gpus import GPU, LAUNCH_SECONDS

Limit = Literal["compute", "memory", "launches"]


@dataclasses.dataclass(frozen=True)
class Bound:
    """A bound on speed, not a measurement.

    Attributes:
        seconds: that the work takes at least.
        limit: what it waits for.
    """

    seconds: float
    limit: Limit

    @classmethod
    def of(cls, gpu: GPU, item_bytes: int, *, flops: float, moved_bytes: float, launches: float) -> Bound:
        """The bound of some work.

        Args:
            gpu: that does it.
            item_bytes: of a number in its products.
            flops: of the work.
            moved_bytes: between memory and processors.
            launches: of kernels, one after the other.
        """
        seconds: dict[Limit, float] = {
            "compute": flops / gpu.flops(item_bytes),
            "memory": moved_bytes / gpu.bandwidth,
            "launches": launches * LAUNCH_SECONDS,
        }
        limit = max(seconds, key=lambda name: seconds[name])
        return cls(seconds[limit], limit)

    def speed(self, tokens: int) -> float | None:
        """Tokens per second; None where nothing is done."""
        return tokens / self.seconds if self.seconds else None
