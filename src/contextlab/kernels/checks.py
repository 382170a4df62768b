"""Checks of arguments: one sentence per mistake. A tensor's name ends with its dimensions, one letter each."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils._mode_utils import no_dispatch

from contextlab.kernels.dispatch import readable


def shapes(**tensors: Tensor) -> dict[str, int]:
    """The size of every letter.

    Raises:
        ValueError: when a tensor has other dimensions than its name says, when one letter has two sizes, or when the
            tensors are on several devices.
    """
    sizes: dict[str, int] = {}
    first = next(iter(tensors))
    for name, tensor in tensors.items():
        letters = name.rpartition("_")[2]
        if tensor.dim() != len(letters):
            raise ValueError(f"{name} has {tensor.dim()} dimensions: give it {len(letters)}, one for each letter.")
        if tensor.device != tensors[first].device:
            raise ValueError(f"{name} is on {tensor.device} and {first} on {tensors[first].device}: move one of them.")
        for letter, size in zip(letters, tensor.shape, strict=True):
            if sizes.setdefault(letter, size) != size:
                raise ValueError(
                    f"{name} has {letter} = {size} where {letter} = {sizes[letter]} before: make them equal."
                )
    return sizes


def heads(sizes: dict[str, int]) -> None:
    """Check that query heads H share key heads K in groups of one size.

    Raises:
        ValueError: when they do not.
    """
    if sizes["K"] == 0 or sizes["H"] % sizes["K"]:
        raise ValueError(f"{sizes['H']} query heads cannot share {sizes['K']} key heads: give a multiple.")


def one_float_type(**tensors: Tensor) -> None:
    """Check that all tensors have one floating-point type.

    Raises:
        TypeError: when they are not.
    """
    first = next(iter(tensors))
    for name, tensor in tensors.items():
        if not tensor.is_floating_point() or tensor.dtype != tensors[first].dtype:
            raise TypeError(f"{name} is {tensor.dtype} beside {first} of {tensors[first].dtype}: use one float type.")


def of_type(dtype: torch.dtype, **tensors: Tensor) -> None:
    """Check that all tensors have the type.

    Raises:
        TypeError: when they are not.
    """
    for name, tensor in tensors.items():
        if tensor.dtype != dtype:
            raise TypeError(f"{name} is {tensor.dtype}: give it as {dtype}.")


def count(count_B: Tensor, chunks: int) -> None:
    """Check that no row uses more chunks than the bank has.

    Only on a CPU: on a GPU the check would wait for the device. There a number out of range is clamped.

    Raises:
        ValueError: when one is out of range.
    """
    if readable(count_B):
        # Hidden from modes that count or watch, because it is not part of the operation.
        with no_dispatch():
            wrong = count_B[(count_B < 0) | (count_B > chunks)]
            _refuse("count_B", wrong, f"in a bank of {chunks} chunks: give from 0 to {chunks}")


def ids(ids_BHTm: Tensor, retrieved_BHTm: Tensor, chunks: int) -> None:
    """Check that the bank has all retrieved chunks.

    Only on a CPU: on a GPU the check would wait for the device. There an id out of range counts as not retrieved.

    Raises:
        ValueError: when one is out of range.
    """
    if readable(ids_BHTm):
        with no_dispatch():
            wrong = ids_BHTm[retrieved_BHTm & ((ids_BHTm < 0) | (ids_BHTm >= chunks))]
            _refuse(
                "ids_BHTm", wrong, f"where retrieved_BHTm is true, in a bank of {chunks} chunks: correct one of them"
            )


def _refuse(name: str, wrong: Tensor, where: str) -> None:
    if wrong.numel():
        raise ValueError(f"{name} has {int(wrong[0])} {where}.")
