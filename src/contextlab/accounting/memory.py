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
    """A context manager that measures the most memory in use at one time, in `peak_bytes`.

    On a CUDA device this is the allocator's peak, which includes earlier allocations. Elsewhere it is `resident_bytes`
    plus the peak of live bytes in storages that operations allocate inside the `with` block. Views and in-place
    operations share a storage, and a freed storage no longer counts, so the number is the same on every machine. The
    temporary memory of operations written in Python is included; that of torch's own operations is not.

    Args:
        device: where the call runs.
        resident_bytes: bytes in memory before the call: weights and states.
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
    """Whether an operation's schema says that its result aliases its arguments."""
    # torch.tensor(...) allocates its storage without a visible operation; lift_fresh follows and shows it.
    returns = getattr(getattr(op, "_schema", None), "returns", ())
    return op is not LIFT_FRESH and any(value.alias_info is not None for value in returns)


def _is_argument(storage: torch.UntypedStorage, op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a storage belongs to an argument, which the schema of `_unsafe_view` does not say."""
    if op is LIFT_FRESH:
        return False
    return any(tensor.untyped_storage() is storage for tensor in tensors_in((*args, *kwargs.values())))


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of the distinct storages of the tensors: shared and tied storages count once, a view counts as a whole."""
    storages = {id(tensor.untyped_storage()): tensor.untyped_storage() for tensor in tensors}
    return sum(storage.nbytes() for storage in storages.values())


def resident_bytes(*modules: torch.nn.Module) -> int:
    """Bytes of all parameters and buffers of the modules; shared ones count once."""
    return storage_bytes(tensor for module in modules for tensor in (*module.parameters(), *module.buffers()))
