"""FLOPs of a call from its products, recorded where Python calls them.

The watch of `accounting.flops` sees every operation, and takes about as much time as a small model. Here only the
functions that compute products are wrapped, for the duration of a call: each runs unchanged and adds FLOPs that follow
from the shapes of its arguments. Results are bitwise equal, and a product takes a microsecond longer. A product that
is called from C++, or by a name that was bound before, is missed; therefore the ledger compares with the watch.

The wrapped functions are those of all threads. Every thread has its own counter, and a thread without one runs the
function as it is.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from typing import Any, Self

import torch
from torch import Tensor
from torch._library.custom_ops import CustomOpDef
from torch.nn import functional
from torch.utils.flop_counter import flop_registry
from torch.utils.weak import WeakIdKeyDictionary

from contextlab.accounting.decompositions import cholesky_flops, eigh_flops, qr_flops, svd_flops, triangular_flops
from contextlab.accounting.flops import CALL_ARGUMENTS, attention_flops, named, visible_pairs
from contextlab.accounting.watch import tensors_in

Arguments = tuple[Any, ...]
CountedAs = Callable[["ProductCounter", Arguments, Mapping[str, Any], Any], tuple[int, int]]
"""Computes FLOPs of a call and of its backward pass from the arguments and the result."""


class ProductCounter:
    """A context manager that sums the FLOPs of this thread's products, including backward passes.

    The convention is that of `accounting.flops`. Of counters inside each other, the inner one counts.

    Attributes:
        flops: FLOPs so far.
        count: number of products so far, without backward passes.
        inside: whether a product is under way, whose parts do not count again.
        largest_bytes: bytes of the first factor and the result of the largest product.
        copied_bytes: bytes of all copies and concatenations, mainly of caches.
    """

    def __init__(self) -> None:
        self.flops = self.count = 0
        self.largest_bytes = self.copied_bytes = 0
        self.inside = False
        self._outer: ProductCounter | None = None
        self._visible = WeakIdKeyDictionary()

    def __enter__(self) -> Self:
        with _CHANGING:
            if not _ENTERED:
                _wrap()
            _ENTERED.append(self)
        self._outer, _HERE.counter = getattr(_HERE, "counter", None), self
        return self

    def __exit__(self, *error: object) -> None:
        _HERE.counter, self._outer = self._outer, None
        with _CHANGING:
            _ENTERED.remove(self)
            if not _ENTERED:
                _unwrap()

    def visible(self, mask: Tensor) -> int:
        """Number of visible pairs of a mask, or a part of one, computed once for all layers that share it."""
        # Every layer takes new slices, which are views of one tensor; it is not kept alive for this.
        counts = self._visible.setdefault(mask if mask._base is None else mask._base, {})
        version = None if mask.is_inference() else mask._version
        part = version, mask.storage_offset(), mask.shape, mask.stride()
        if part not in counts:
            counts[part] = visible_pairs(mask)
        return int(counts[part])

    def add(self, flops: int, *_gradients: Any) -> None:
        """Add FLOPs; also a hook of a backward pass."""
        self.flops += flops


_HERE = threading.local()
"""The counter of a thread, `counter`, where it has one."""
_ENTERED: list[ProductCounter] = []
"""The counters of all threads."""
_CHANGING = threading.Lock()


def _counter() -> ProductCounter | None:
    """The counter of this thread; of a thread of autograd's own, which has no counter, the only one that there is."""
    counter: ProductCounter | None = getattr(_HERE, "counter", None)
    if counter is None and len(_ENTERED) == 1 and threading.get_ident() not in {t.ident for t in threading.enumerate()}:
        return _ENTERED[0]
    return counter


def _wrap() -> None:
    for (owner, name), count in _COUNTS.items():
        setattr(owner, name, _wrapped(getattr(owner, name), count))


def _unwrap() -> None:
    for (owner, name), original in _ORIGINALS.items():
        if original is None:
            delattr(owner, name)
        else:
            setattr(owner, name, original)


def _wrapped(original: Callable[..., Any], count: CountedAs) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        counter = _counter()
        if counter is None or counter.inside:
            return original(*args, **kwargs)
        counter.inside = True
        try:
            result = original(*args, **kwargs)
        finally:
            counter.inside = False
        forward, backward = count(counter, args, kwargs, result)
        counter.flops += forward
        counter.count += forward > 0
        if backward and isinstance(result, Tensor) and result.requires_grad:
            result.grad_fn.register_hook(functools.partial(counter.add, backward))  # type: ignore[union-attr]
        return result

    return call


def _product(counter: ProductCounter, args: Arguments, kwargs: Mapping[str, Any], result: Any) -> tuple[int, int]:
    """The product of the first two tensors."""
    a, b = [*tensors_in(args), *tensors_in(tuple(kwargs.values()))][:2]
    counter.largest_bytes = max(counter.largest_bytes, a.nbytes + result.nbytes)
    flops = 2 * result.numel() * a.shape[-1]
    return flops, flops * (a.requires_grad + b.requires_grad)


def _added_product(counter: ProductCounter, args: Arguments, kwargs: Mapping[str, Any], result: Any) -> tuple[int, int]:
    """The product of the second and the third tensor, to which the first is added."""
    _, *factors = *tensors_in(args), *tensors_in(tuple(kwargs.values()))
    return _product(counter, tuple(factors), {}, result)


def _attention(counter: ProductCounter, args: Arguments, kwargs: Mapping[str, Any], _: Any) -> tuple[int, int]:
    flops = attention_flops(named(CALL_ARGUMENTS, args, kwargs), counter.visible)
    return flops, 2 * flops


def _copy(counter: ProductCounter, _args: Arguments, _kwargs: Mapping[str, Any], result: Any) -> tuple[int, int]:
    counter.copied_bytes += result.nbytes
    return 0, 0


def _custom(_: ProductCounter, args: Arguments, kwargs: Mapping[str, Any], result: Any) -> tuple[int, int]:
    """An operation outside of torch, by its registered formula; its backward pass is counted separately."""
    op, *inputs = args
    formula = flop_registry.get(op._opoverload._overloadpacket)
    return (formula(*inputs, **kwargs, out_val=result) if formula else 0), 0


def _decomposition(flops_of: Callable[..., int]) -> CountedAs:
    """A matrix decomposition, by the formula of its operands' shapes."""

    def count(_: ProductCounter, args: Arguments, kwargs: Mapping[str, Any], _result: Any) -> tuple[int, int]:
        operands = *tensors_in(args), *tensors_in(tuple(kwargs.values()))
        return flops_of(*(operand.shape for operand in operands)), 0

    return count


_PRODUCT_NAMES = ("matmul", "mm", "bmm", "mv", "dot")
_SUM_NAMES = ("addmm", "addmv", "baddbmm")
_COPY_NAMES = ("repeat_interleave", "gather", "clone")
_COUNTS: dict[tuple[Any, str], CountedAs] = {
    (functional, "linear"): _product,
    (functional, "scaled_dot_product_attention"): _attention,
    (CustomOpDef, "__call__"): _custom,
    (torch.linalg, "svd"): _decomposition(svd_flops),
    (torch.linalg, "qr"): _decomposition(qr_flops),
    (torch.linalg, "eigh"): _decomposition(eigh_flops),
    (torch.linalg, "cholesky"): _decomposition(cholesky_flops),
    (torch.linalg, "solve_triangular"): _decomposition(triangular_flops),
    (torch.Tensor, "__matmul__"): _product,
    **{(owner, name): _product for owner in (torch, torch.Tensor) for name in _PRODUCT_NAMES},
    **{(owner, name): _added_product for owner in (torch, torch.Tensor) for name in _SUM_NAMES},
}
_COUNTS[torch, "cat"] = _copy
_COUNTS |= {(torch.Tensor, name): _copy for name in _COPY_NAMES}
_ORIGINALS = {(owner, name): vars(owner).get(name) for owner, name in _COUNTS}
