"""Groups of chunks in 8 or 4 bits: keys share a range per channel and group of tokens, values one per token.

A group is the fewest whole chunks of at least `GROUP` tokens, counted from the first token that a row has stored. Mean
keys have 8 bits in the ranges of the keys that they are means of, and cost no range of their own. With heads of 64
numbers and groups of 64 tokens, ranges add half a bit to every number: 8.5 or 4.5 bits. With chunks of 4 tokens, mean
keys add 2 bits per number of a key.

Legend: B rows, K key/value heads, S tokens, D head width, d bytes of a key, g groups, G tokens of a group, n chunks, c
tokens of a chunk, or chunks of a group, X bytes.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from contextlab.methods.parts.few_bits import BITS, RANGE_BYTES, Range, Storage, Vectors

GROUP = 64
"""Tokens of a group of keys, at least: a range costs 32 bits per channel, half a bit per number."""
MEAN_BITS = 8


@dataclasses.dataclass(frozen=True)
class Groups:
    """How groups of chunks are stored.

    Attributes:
        vectors: how values are stored; keys have as many bits.
        width: D, numbers of a key or a value.
        csz: tokens of a chunk.
    """

    vectors: Vectors
    width: int
    csz: int

    @property
    def bits(self) -> int:
        """Bits of a number."""
        assert self.vectors.bits is not None
        return self.vectors.bits

    @property
    def tokens(self) -> int:
        """G: tokens of a group."""
        return group_tokens(self.csz)

    @property
    def chunks(self) -> int:
        """Chunks of a group."""
        return group_tokens(self.csz) // self.csz

    def value_ranges(self, stored_BKnX: Tensor) -> Range:
        """Ranges of values."""
        return self.vectors.ranges(stored_BKnX.unflatten(3, (self.csz, -1)))

    @property
    def shapes(self) -> tuple[int, int, int]:
        """X of a chunk's keys, of a chunk's values, and of a group's ranges and mean keys."""
        keys, values = self.csz * self.width * self.bits // 8, self.csz * self.vectors.width(self.width)
        return keys, values, self.width * (RANGE_BYTES + self.chunks)

    def stored(self, k_BKSD: Tensor, v_BKSD: Tensor, mean_BKnD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Keys and values of whole groups as `BKnX`, ranges and mean keys as `BKgX`."""
        k_BKgGD, mean_BKgcD = k_BKSD.unflatten(2, (-1, self.tokens)), mean_BKnD.unflatten(2, (-1, self.chunks))
        ranges_BKg1D = Range.of(k_BKgGD, 3, self.bits)
        codes_BKSd = ranges_BKg1D.codes(k_BKgGD, self.bits).flatten(2, 3)
        codes_BKgcD = self._of_means(ranges_BKg1D).codes(mean_BKgcD, MEAN_BITS)
        keys_BKnX, values_BKnX = (
            x.unflatten(2, (-1, self.csz)).flatten(3) for x in (codes_BKSd, self.vectors.stored(v_BKSD))
        )
        return keys_BKnX, values_BKnX, torch.cat((ranges_BKg1D.bytes().flatten(3), codes_BKgcD.flatten(3)), dim=3)

    def keys(self, stored_BKnX: Tensor, ranges_BKn1D: Range, dtype: torch.dtype) -> Tensor:
        """`k_BKncD` of some chunks, each with the ranges of its group."""
        return ranges_BKn1D.numbers(stored_BKnX.unflatten(3, (self.csz, -1)), self.bits, dtype)

    def values(self, stored_BKnX: Tensor, dtype: torch.dtype) -> Tensor:
        """`v_BKncD` of some chunks."""
        return self.vectors.restored(stored_BKnX.unflatten(3, (self.csz, -1)), dtype)

    def ranges(self, stored_BKgX: Tensor) -> Range:
        """Ranges of the keys of groups, `BKg1D`."""
        return Range.of_bytes(stored_BKgX[..., None, : self.width * RANGE_BYTES])

    def means(self, stored_BKgX: Tensor, dtype: torch.dtype) -> Tensor:
        """`mean_BKnD` of all chunks."""
        codes_BKgcD = stored_BKgX[..., self.width * RANGE_BYTES :].unflatten(3, (self.chunks, self.width))
        return self._of_means(self.ranges(stored_BKgX)).numbers(codes_BKgcD, MEAN_BITS, dtype).flatten(2, 3)

    def _of_means(self, ranges: Range) -> Range:
        """The same ranges in steps of mean keys."""
        return Range(ranges.lowest, ranges.step.float() * ((2**self.bits - 1) / (2**MEAN_BITS - 1)))


def group_tokens(csz: int) -> int:
    """G: tokens of a group of chunks."""
    return -(-GROUP // csz) * csz


def unit_of(csz: int, storage: Storage | None) -> int:
    """Tokens that leave a full bank together: a chunk, or a group where it is packed."""
    return group_tokens(csz) if storage in BITS else csz
