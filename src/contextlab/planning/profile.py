"""A method's needs at any length, from two dry runs at short lengths.

Once windows are full and memories in use, every operation of a block leaves as many live bytes as a straight line in
the bytes of the state says, and further blocks add equally many kernels. So the line is drawn for every operation, and
the peak is the highest of all lines: a line that rises slowly may be the highest in a short text and not in a long one.
"""

from __future__ import annotations

import dataclasses

import torch

from contextlab.method import AnyMethod, Lengths
from contextlab.methods.parts.blocks import BLOCK_TOKENS
from contextlab.methods.parts.formulas import BlockFormula
from contextlab.methods.parts.groups import GROUP
from contextlab.planning.dry_run import DryRun, NotedCall, dry_run

LONGEST_SEGMENT = 8 * BLOCK_TOKENS
"""Tokens of a segment that a dry run reads to its end; it stays inside of a longer one."""
SMALL_MEMORY = 4096
"""Tokens of a memory that a dry run fills, at most."""
LEAST = 3
"""Units of the shorter dry run, at least: in the first one nothing is cached, and segments end in the next."""


@dataclasses.dataclass(frozen=True)
class ShortTexts:
    """Lengths of the two texts of the dry runs.

    Attributes:
        short: tokens of one.
        long: tokens of the other.
    """

    short: int
    long: int

    @classmethod
    def of(cls, method: AnyMethod) -> ShortTexts:
        """Lengths at which windows are full and memories in use, a whole number of segments apart."""
        formula = method.formula(Lengths(LONGEST_SEGMENT))
        segment = formula.segments.length if isinstance(formula, BlockFormula) else BLOCK_TOKENS
        # What starts again after its longest text is the same in every one of them, and grows until its end.
        if segment > (LONGEST_SEGMENT if method.capabilities.max_context is None else LEAST * BLOCK_TOKENS):
            # A view in few bits is read in small steps.
            unit = BLOCK_TOKENS if getattr(method.config, "cache", None) is None else 2 * GROUP
            return cls(LEAST * unit, (LEAST + 1) * unit)
        unit = -(-BLOCK_TOKENS // segment) * segment
        # The view is full after two segments, what leaves it is read in the next ones.
        first = max(LEAST, -(-2 * segment // unit) + LEAST - 1)
        return cls(first * unit, (first + 1) * unit)


class Lines:
    """The live bytes of calls at any size of the state.

    Args:
        short: the call of the shorter dry run.
        long: that of the longer one.
        states: bytes of their states.
    """

    def __init__(self, short: NotedCall, long: NotedCall, states: tuple[int, int]) -> None:
        before, self._at = states
        grown, alike = self._at - before, _alike(short.ops, long.ops)
        early, last = long.live[: len(long.live) - alike], long.live[len(long.live) - alike :]
        self._apart = max(early, default=0) - self._at
        points = torch.tensor([short.live[len(short.live) - alike :], last], dtype=torch.float64)
        slope = (points[1] - points[0]) / grown if grown else torch.zeros(alike)
        self._lines = torch.stack((points[1], slope)).unique(dim=1)

    def peak(self, state: int) -> int:
        """The most live bytes with a state of so many bytes, the state included."""
        last, slope = self._lines
        highest = (last + slope * (state - self._at)).tolist()
        # What has no counterpart in the shorter run, above all the first blocks, keeps its distance to the state.
        return int(max([state, state + self._apart, *highest]))


def _alike(short: list[str], long: list[str]) -> int:
    """How many of the last operations of two calls are the same, of those of their last units."""
    most = len(long) - len(short) if len(long) > len(short) else len(short)
    count = 0
    for a, b in zip(reversed(short[-most:]), reversed(long), strict=False):
        if a != b:
            break
        count += 1
    return count


class Profile:
    """The needs of a method, from two dry runs.

    Args:
        short: the one of fewer tokens, or of a smaller memory that is full.
        long: the other one.
    """

    def __init__(self, short: DryRun, long: DryRun) -> None:
        self.short, self.long = short, long
        states = short.state_bytes, long.state_bytes
        self._read, self._decoded = Lines(short.read, long.read, states), Lines(short.decoded, long.decoded, states)

    @classmethod
    def of(cls, method: AnyMethod, rows: int) -> Profile:
        """The needs of a method on shapes while its state grows."""
        texts = ShortTexts.of(method)
        return cls(*(dry_run(method, length, rows) for length in (texts.short, texts.long)))

    @classmethod
    def filled(cls, method: AnyMethod, rows: int) -> Profile | None:
        """The needs of a method whose memory is full, and drops what is oldest for what is new: from two memories that
        are small enough to be filled here. None where it has no memory of a number of tokens.

        Raises:
            UserError: where no smaller memory fits the other settings.
        """
        most = getattr(method.config, "M", None)
        if not most:
            return None
        texts = ShortTexts.of(method)
        larger = min(most, SMALL_MEMORY)
        runs = list[DryRun]()
        for tokens in (larger // 2, larger):
            settings = {**method.config.as_dict(), "M": tokens}
            smaller = type(method)(method.backbone, type(method.config).parse(settings, "a smaller memory"))
            unit = texts.long - texts.short
            runs.append(dry_run(smaller, texts.short - tokens // -unit * unit, rows))
        return cls(*runs)

    @property
    def grows(self) -> bool:
        """Whether the state still grew."""
        return self.long.state_bytes > self.short.state_bytes

    def peak(self, state: int) -> int:
        """The most live bytes, without those of weights, with a state of so many bytes: of reading or of decoding."""
        return max(self._read.peak(state), self._decoded.peak(state))

    def read_peak(self, state: int) -> int:
        """The same of reading alone."""
        return self._read.peak(state)

    def on_host(self, state: int) -> int:
        """Bytes of a state of so many that leave the device with `stored_in=host`."""
        return int(self._line(state, self.short.bank_bytes, self.long.bank_bytes))

    def in_use(self, state: int) -> int:
        """Bytes of chunks that come back from the host for a layer, at most."""
        return self.on_host(state) // max(self.long.banks, 1)

    def launches(self, length: int) -> float:
        """Kernels that reading so many tokens needs."""
        return self._by_length(length, self.short.read.launches, self.long.read.launches)

    def weight_bytes(self, length: int) -> float:
        """Bytes of weights that reading so many tokens reads."""
        return self._by_length(length, self.short.read.weight_bytes, self.long.read.weight_bytes)

    def _by_length(self, length: int, short: int, long: int) -> float:
        step = (long - short) / (self.long.tokens - self.short.tokens)
        return max(long + step * (length - self.long.tokens), 0)

    def _line(self, state: int, short: int, long: int) -> float:
        grown = self.long.state_bytes - self.short.state_bytes
        return long + ((long - short) / grown * (state - self.long.state_bytes) if grown else 0)
