"""Seeing every operation that runs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch.utils._python_dispatch import TorchDispatchMode

Observer = Callable[[Any, tuple[Any, ...], Mapping[str, Any], Any], None]


class Watch(TorchDispatchMode):
    """While entered, shows every operation to `observer(op, args, kwargs, result)` after it ran.

    Composite operations are shown as the operations they consist of. Autograd resolves them before a mode sees them,
    `torch.inference_mode` does not, so that `linear` would arrive in one piece there and in its parts elsewhere.
    """

    supports_higher_order_operators = True

    def __init__(self, observer: Observer) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._observer = observer

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if _is_composite(func):
            with self:
                # `func.decompose` prefers Python decompositions, whose results differ in the last bits.
                return func._op_dk(DispatchKey.CompositeImplicitAutograd, *args, **kwargs)
        result = func(*args, **kwargs)
        self._observer(func, args, kwargs, result)
        return result


@functools.cache
def _is_composite(op: Any) -> bool:
    if not hasattr(op, "_overloadpacket"):
        return False
    return torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), DispatchKey.CompositeImplicitAutograd)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors of an operation's arguments or result, in lists and tuples too."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
