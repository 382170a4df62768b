"""Numbers in 8 or 4 bits: whole numbers of steps above the lowest of those that share a range.

A range is the lowest number in float16 (numbers beyond 65,504 are clipped to it) and the step in bfloat16, which has no
smallest size. An error is at most half a step, and what rounding the lowest adds. A lowest number of its own halves the
error of keys, whose channels are far from zero, beside steps from -L to L.

Legend: D numbers of a vector, d bytes of their codes, x bytes of a vector with its range.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch
from torch import Tensor

from contextlab.errors import UserError
from contextlab.kernels.buffers import wide
from contextlab.tensors import dtype_named

Storage = Literal["float16", "bfloat16", "float32", "int8", "int4"]
BITS = {"int8": 8, "int4": 4}
RANGE_BYTES = 4
"""Bytes of a range."""
MOST = torch.finfo(torch.float16).max
ABOVE = 1 + 2**-8
"""Makes a step that is rounded to bfloat16 no smaller than it was."""


@dataclasses.dataclass(frozen=True)
class Range:
    """The range of numbers.

    Attributes:
        lowest: of them; code 0. As stored in float16.
        step: from one code to the next; 0 where all numbers are equal. As stored in bfloat16.
    """

    lowest: Tensor
    step: Tensor

    @classmethod
    def of(cls, x: Tensor, dim: int, bits: int) -> Range:
        """The range of all numbers along a dimension, which stays with size 1."""
        x = x.detach().to(wide(x)).clamp(-MOST, MOST)
        lowest = x.amin(dim, keepdim=True).half()
        step = (x.amax(dim, keepdim=True) - lowest).clamp(min=0) / (2**bits - 1) * ABOVE
        return cls(lowest, step.bfloat16())

    @classmethod
    def of_bytes(cls, stored: Tensor) -> Range:
        """Ranges from the last dimension of uint8, `RANGE_BYTES` for each."""
        numbers = stored.contiguous().view(torch.int16)
        return cls(numbers[..., 0::2].view(torch.float16), numbers[..., 1::2].view(torch.bfloat16))

    def bytes(self) -> Tensor:
        """The ranges of the last dimension as uint8, one after the other."""
        numbers = (self.lowest.view(torch.int16), self.step.view(torch.int16))
        return torch.stack(numbers, dim=-1).flatten(-2).view(torch.uint8)

    def codes(self, x: Tensor, bits: int) -> Tensor:
        """`codes_d` of `x_D` as uint8; with 4 bits the second half of every vector lies in the upper bits."""
        x = x.detach().to(wide(x))
        step = self.step.to(x.dtype)
        codes = (x - self.lowest).div_(step.where(step > 0, 1.0)).round_().clamp_(0, 2**bits - 1).to(torch.uint8)
        if bits == 8:
            return codes
        lower, upper = codes.chunk(2, dim=-1)
        return lower | upper << 4

    def numbers(self, codes: Tensor, bits: int, dtype: torch.dtype) -> Tensor:
        """`x_D` of `codes_d`, in a type of floating-point numbers."""
        if bits == 4:
            codes = torch.cat((codes & 15, codes >> 4), dim=-1)
        kind = torch.promote_types(dtype, torch.float32)
        return codes.to(kind).mul_(self.step.to(kind)).add_(self.lowest.to(kind)).to(dtype)


@dataclasses.dataclass(frozen=True)
class Vectors:
    """How vectors are stored, each by itself.

    Attributes:
        dtype: of the stored tensors.
        bits: of a number where a vector is stored as codes with one range, in uint8; None where it is stored as it is.
    """

    dtype: torch.dtype
    bits: int | None = None

    @classmethod
    def of(cls, storage: Storage | None, own: torch.dtype, width: int) -> Vectors:
        """What a setting says.

        Args:
            storage: the setting; None for the model's own type.
            own: the model's own type.
            width: numbers of a vector.

        Raises:
            UserError: when vectors of that width have no such form.
        """
        bits = None if storage is None else BITS.get(storage)
        if bits == 4 and width % 2:
            raise UserError(f"storage_dtype=int4 stores pairs of numbers, and heads have {width}: use int8.")
        return cls(torch.uint8, bits) if bits else cls(dtype_named(storage) if storage else own)

    def width(self, numbers: int) -> int:
        """x: items of a stored vector of so many numbers."""
        return numbers if self.bits is None else numbers * self.bits // 8 + RANGE_BYTES

    def nbytes(self, numbers: int) -> int:
        """Bytes of a stored vector of so many numbers."""
        return self.width(numbers) * self.dtype.itemsize

    def stored(self, vectors: Tensor) -> Tensor:
        """`stored_x` of `vectors_D`, without a graph where it is in few bits."""
        if self.bits is None:
            return vectors.to(self.dtype)
        shared = Range.of(vectors, -1, self.bits)
        return torch.cat((shared.codes(vectors, self.bits), shared.bytes()), dim=-1)

    def restored(self, stored: Tensor, dtype: torch.dtype) -> Tensor:
        """`vectors_D` in a type of floating-point numbers."""
        if self.bits is None:
            return stored.to(dtype)
        return self.ranges(stored).numbers(stored[..., :-RANGE_BYTES], self.bits, dtype)

    def ranges(self, stored: Tensor) -> Range:
        """The ranges of vectors in few bits."""
        return Range.of_bytes(stored[..., -RANGE_BYTES:])
