"""Checks of arguments: one sentence per mistake. A tensor's name ends with its dimensions, one letter each."""

from __future__ import annotations

import torch
from torch import Tensor


def shapes(**tensors: Tensor) -> dict[str, int]:
    """The size of every letter.

    Raises:
        ValueError: when a tensor has other dimensions than its name says, when one letter stands for two sizes, or
            when the tensors are on several devices.
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
    """Query heads H must share key heads K in groups of one size.

    Raises:
        ValueError: when they do not.
    """
    if sizes["K"] == 0 or sizes["H"] % sizes["K"]:
        raise ValueError(f"{sizes['H']} query heads cannot share {sizes['K']} key heads: give a multiple.")


def one_float_type(**tensors: Tensor) -> None:
    """All of one floating-point type.

    Raises:
        TypeError: when they are not.
    """
    first = next(iter(tensors))
    for name, tensor in tensors.items():
        if not tensor.is_floating_point() or tensor.dtype != tensors[first].dtype:
            raise TypeError(f"{name} is {tensor.dtype} beside {first} of {tensors[first].dtype}: use one float type.")


def of_type(dtype: torch.dtype, **tensors: Tensor) -> None:
    """All of the given type.

    Raises:
        TypeError: when they are not.
    """
    for name, tensor in tensors.items():
        if tensor.dtype != dtype:
            raise TypeError(f"{name} is {tensor.dtype}: give it as {dtype}.")
