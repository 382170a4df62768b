"""One row of a plan."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class PlannedRow:
    """A method at one length; None is what cannot be known without running it.

    Attributes:
        method: with its settings.
        length: tokens read, of every text.
        weights_bytes: of the model and of what the method adds.
        added_bytes: of the latter.
        state_bytes: of the largest state while the texts are read, wherever it lies.
        peak_bytes: on the GPU, the most of all, weights included, of reading and of decoding one token.
        read_flops: of reading the texts without scoring them.
        decoded_flops: of one token of every text after that.
        read_launches: kernels per 1,024 tokens read.
        decoded_launches: kernels per decoded token.
        read_speed: tokens per second at most.
        read_limit: what that waits for.
        decoded_speed: tokens per second at most.
        decoded_limit: what that waits for.
        fits: whether the peak is in the memory that can be used.
        advice: where it does not, what does.
        notes: what is missing or more than it says, and why.
    """

    method: str
    length: int
    weights_bytes: int | None = None
    added_bytes: int | None = None
    state_bytes: int | None = None
    peak_bytes: int | None = None
    read_flops: int | None = None
    decoded_flops: int | None = None
    read_launches: float | None = None
    decoded_launches: int | None = None
    read_speed: float | None = None
    read_limit: str | None = None
    decoded_speed: float | None = None
    decoded_limit: str | None = None
    fits: bool | None = None
    advice: str | None = None
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The fields as plain values."""
        return dataclasses.asdict(self)
