"""What a method needs at one length: its formula and its dry runs put together."""

from __future__ import annotations

import dataclasses
import functools
from itertools import accumulate

from contextlab.errors import UserError
from contextlab.method import AnyMethod
from contextlab.methods.parts.blocks import BLOCK_TOKENS
from contextlab.planning.arithmetic import Arithmetic
from contextlab.planning.profile import Profile


@dataclasses.dataclass(frozen=True)
class Needs:
    """The bytes of a method at one length.

    Attributes:
        method: on shapes, with a bank in its own type on the device.
        profile: of its dry runs.
        text: its formula at this length, which knows the state.
        weights: bytes of the model and of what the method adds.
        packed: the same with the bank in few bits, where it is.
        on_host: whether the bank is on the host.
    """

    method: AnyMethod
    profile: Profile
    text: Arithmetic
    weights: int
    packed: Arithmetic | None = None
    on_host: bool = False

    @property
    def peak(self) -> int:
        """The most bytes at one time on the device."""
        return self._peaks[-1]

    def longest(self, usable: int) -> int:
        """The most tokens, a multiple of 1,024, with a peak of no more bytes; 0 where there are none."""
        fits = [peak <= usable for peak in self._peaks]
        return BLOCK_TOKENS * (fits.index(False) if False in fits else len(fits))

    @property
    def read_bytes(self) -> float:
        """Bytes moved by reading: the weights of every pass, and the state once in every block of 1,024 tokens."""
        return self.profile.weight_bytes(self.text.length) + sum(self._on_device)

    @property
    def decoded_bytes(self) -> float:
        """Bytes moved by one token: the weights and the state."""
        return self.profile.long.decoded.weight_bytes + self._on_device[-1]

    @functools.cached_property
    def states(self) -> list[int]:
        """Bytes of the largest state so far, before the end of every 1,024 tokens."""
        assert self.text.states is not None
        return list(accumulate(self.text.states, max))

    @functools.cached_property
    def _full(self) -> list[bool]:
        """Whether the memory is full, before the end of every 1,024 tokens: the state grew, and has stopped."""
        most = getattr(self.method.config, "M", None) if self.profile.grows else None
        if not most:
            return [False] * len(self.states)
        ends = range(BLOCK_TOKENS, BLOCK_TOKENS * (len(self.states) + 1), BLOCK_TOKENS)
        before = [-1, *self.states]
        return [end > most and a == b for end, a, b in zip(ends, before, self.states, strict=False)]

    @functools.cached_property
    def _peaks(self) -> list[int]:
        """The most bytes up to the end of every 1,024 tokens."""
        apart = self._kept_apart
        peaks = list[int]()
        for state, away, full in zip(self.states, apart, self._full, strict=True):
            profile = (self._filled or self.profile) if full else self.profile
            # Of a bank that is kept apart, the chunks of one layer come back for a time, all of them at most.
            back = min(self.profile.in_use(state), away)
            peaks.append(self.weights + profile.peak(state) - away + back)
        return list(accumulate(peaks, max))

    @property
    def _kept_apart(self) -> list[int]:
        """Bytes of every state that are not there: on the host, or left out by fewer bits."""
        if self.on_host:
            return [self.profile.on_host(state) for state in self.states]
        if self.packed is None:
            return [0] * len(self.states)
        assert self.packed.states is not None
        packed = accumulate(self.packed.states, max)
        return [max(wide - few, 0) for wide, few in zip(self.states, packed, strict=True)]

    @property
    def _on_device(self) -> list[int]:
        """Bytes of the state that a pass finds there, before the end of every 1,024 tokens."""
        assert self.text.states is not None
        pairs = zip(self.text.states, self._kept_apart, strict=True)
        return [max(state - apart, 0) for state, apart in pairs]

    @functools.cached_property
    def _filled(self) -> Profile | None:
        try:
            return Profile.filled(self.method, self.text.rows)
        except UserError:  # no smaller memory fits the other settings
            return None
