"""Peak memory of a call, in bytes."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import Any, Self

import torch
from torch import Tensor

from contextlab.accounting.watch import tensors_in, watching

LIFT_FRESH = torch.ops.aten.lift_fresh.default


class PeakMemory:
    """While entered, finds the most memory in use at one time; read `peak_bytes` afterwards.

    On a CUDA device this is the allocator's peak, which includes all that was allocated before. Elsewhere it is
    `resident_bytes` plus the peak of live bytes in storages that operations made since entering. Views and in-place
    operations share a storage, and a storage stops counting as soon as it is freed, so the number is the same on
    every machine. Operations written in Python are seen from inside; the working memory of torch's own is not.

    Args:
        device: where the call runs.
        resident_bytes: what the call finds in memory: weights and states.
    """

    def __init__(self, device: torch.device | str = "cpu", resident_bytes: int = 0) -> None:
        self.peak_bytes = resident_bytes
        self._device = torch.device(device)
        self._live_bytes = resident_bytes
        self._live: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        else:
            self._stack.enter_context(watching(self._observe))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()
        self._live.clear()
        if self._device.type == "cuda":
            self.peak_bytes = torch.cuda.max_memory_allocated(self._device)

    def _observe(self, op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any, _inside: bool) -> None:
        if _returns_arguments(op):
            return
        for tensor in tensors_in(result):
            if tensor.layout is not torch.strided:
                continue
            storage = tensor.untyped_storage()
            if id(storage) not in self._live and not _is_argument(storage, op, args, kwargs):
                self._add(storage)

    def _add(self, storage: torch.UntypedStorage) -> None:
        key, size = id(storage), storage.nbytes()

        def freed(_: object) -> None:
            if self._live.pop(key, None) is not None:
                self._live_bytes -= size

        self._live[key] = weakref.ref(storage, freed)
        self._live_bytes += size
        self.peak_bytes = max(self.peak_bytes, self._live_bytes)


@functools.cache
def _returns_arguments(op: Any) -> bool:
    """Whether an operation says that what it returns is part of its arguments."""
    # torch.tensor(...) fills its storage unseen, and lift_fresh announces it.
    returns = getattr(getattr(op, "_schema", None), "returns", ())
    return op is not LIFT_FRESH and any(value.alias_info is not None for value in returns)


def _is_argument(storage: torch.UntypedStorage, op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a storage belongs to an argument: `_unsafe_view` does not say so."""
    if op is LIFT_FRESH:
        return False
    return any(tensor.untyped_storage() is storage for tensor in tensors_in((*args, *kwargs.values())))


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of the distinct storages behind the tensors: shared and tied ones count once, views as all they keep."""
    storages = {id(tensor.untyped_storage()): tensor.untyped_storage() for tensor in tensors}
    return sum(storage.nbytes() for storage in storages.values())


def resident_bytes(*modules: torch.nn.Module) -> int:
    """Bytes of all parameters and buffers of the modules, what they share counted once."""
    return storage_bytes(tensor for module in modules for tensor in (*module.parameters(), *module.buffers()))
