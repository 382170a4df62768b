"""Memory of tensors in files that are mapped into memory, so that what is seldom read need not be resident."""

from __future__ import annotations

import math
import mmap
import tempfile
import weakref

import torch
from torch import Tensor

from contextlab.errors import UserError
from contextlab.paths import cache_dir

_mapped: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()


def allocate(like: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Uninitialised memory of a shape, for numbers of the type of a tensor on a CPU.

    The file has no name, takes only the space of what is written, and disappears with the tensor.

    Raises:
        UserError: when the cache folder cannot be written.
    """
    count = math.prod(shape)
    if not count:
        return like.new_empty(shape)
    folder = cache_dir() / "banks"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.truncate(count * like.itemsize)
            memory = mmap.mmap(file.fileno(), count * like.itemsize)
    except OSError as error:
        raise UserError(f"{folder} cannot hold a bank ({error.strerror}): set CONTEXTLAB_CACHE.") from error
    _mapped.add(memory)
    return torch.frombuffer(memory, dtype=like.dtype).view(shape)


def release() -> None:
    """Let the system take back all pages of these files; what is read again comes from the file."""
    for memory in list(_mapped):
        if hasattr(mmap, "MADV_DONTNEED"):
            memory.madvise(mmap.MADV_DONTNEED)
