"""Observing every operation that runs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

Observer = Callable[[Any, tuple[Any, ...], Mapping[str, Any], Any, bool], None]
OF_TORCH = frozenset({"aten", "prim", "prims"})


@contextmanager
def watching(observer: Observer) -> Iterator[None]:
    """Call `observer(op, args, kwargs, result, inside)` after every operation.

    Composite operations are decomposed. Autograd does this anyway, but `torch.inference_mode` does not: without it
    `linear` would be one operation there and several elsewhere. Operations outside of torch that are written in Python
    follow their own operations, for which `inside` is true.
    """
    mode = _get_current_dispatch_mode()
    if not isinstance(mode, _Watch):
        with _Watch(observer):
            yield
        return
    # Two modes would take twice the time, and the outer one would see the operations that the inner one decomposes.
    mode.observers.append(observer)
    try:
        yield
    finally:
        mode.observers.remove(observer)


class _Watch(TorchDispatchMode):
    supports_higher_order_operators = True

    def __init__(self, observer: Observer) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.observers = [observer]
        self._inside = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        parts = _parts(func, _backend(args))
        if parts is None:
            result = func(*args, **kwargs)
        elif parts is DispatchKey.CompositeImplicitAutograd:
            with self:
                # `func.decompose` uses Python decompositions first, whose results differ in the last bits.
                return func._op_dk(parts, *args, **kwargs)
        else:
            with self, self._within():
                result = func._op_dk(parts, *args, **kwargs)
        for observer in self.observers:
            observer(func, args, kwargs, result, self._inside)
        return result

    @contextmanager
    def _within(self) -> Iterator[None]:
        before, self._inside = self._inside, True
        try:
            yield
        finally:
            self._inside = before


def _backend(args: tuple[Any, ...]) -> DispatchKey:
    """The dispatch key of the kernels for these arguments."""
    first = next(tensors_in(args), None)
    if first is not None and first.is_meta:
        return DispatchKey.Meta
    return DispatchKey.CUDA if first is not None and first.is_cuda else DispatchKey.CPU


@functools.cache
def _parts(op: Any, backend: DispatchKey) -> DispatchKey | None:
    """The dispatch key of an operation's decomposition; None for an operation with its own kernel."""
    if not hasattr(op, "_overloadpacket") or torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), backend):
        return None
    for key in (DispatchKey.CompositeImplicitAutograd, DispatchKey.CompositeExplicitAutograd):
        if torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key):
            return None if key is DispatchKey.CompositeExplicitAutograd and op.namespace in OF_TORCH else key
    return None


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in an operation's arguments or result, also in lists and tuples."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
