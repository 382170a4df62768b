"""A GPU that is not there, for tests on a CPU: where tensors lie, what waits for the device, and what is launched.

Inside of the block of a `SimulatedGPU`, the device `cuda` is there. Its tensors lie in the memory of the host, whose
operations compute them: the simulation only remembers which pieces of memory count as the device's. It raises as torch
does where an operation is given tensors of both, and counts. Nothing is timed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from collections.abc import Iterator, Mapping
from typing import Any, Self
from unittest import mock

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention.bias import CausalBias
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from contextlab.accounting.watch import tensors_in, watching
from contextlab.planning.dry_run import launches_of

GPU, HOST = torch.device("cuda", 0), torch.device("cpu")
TO_HOST = "_local_scalar_dense"
"""The operation of `Tensor.item`, which copies a number to the host."""
WAITING = frozenset(
    (TO_HOST, "nonzero", "masked_select", "equal", "bincount", "_unique2", "unique_dim", "unique_consecutive")
)
"""Operations whose result, or its size, the host waits for."""
INDEXING = frozenset(("index", "index_put", "index_put_", "_index_put_impl_"))
"""Operations that take tensors of the host to index those of a device, and copy them."""
ATTENTION = functional.scaled_dot_product_attention
FROM_VALUES = (torch.tensor, torch.as_tensor)
PROPERTIES = {
    torch.Tensor.device.__get__: GPU,
    torch.Tensor.is_cuda.__get__: True,  # type: ignore[attr-defined]
    torch.Tensor.is_cpu.__get__: False,  # type: ignore[attr-defined]
    torch.Tensor.get_device: GPU.index,
}
"""What a tensor of the device says of itself."""
GETTER = type(torch.Tensor.shape.__get__)  # type: ignore[attr-defined]
MOVES = (torch.Tensor.to, torch.Tensor.cpu, torch.Tensor.cuda)
AS_ARRAY = (torch.Tensor.numpy, torch.Tensor.__array__)


@dataclasses.dataclass
class DeviceCounts:
    """What a device was given.

    Attributes:
        launches: of kernels; an operation of torch counts as one, and one of this package as `dispatch.LAUNCHES` says.
        waits: of the host for the device, copies to the host among them.
        copies: from the host to the device.
    """

    launches: int = 0
    waits: int = 0
    copies: int = 0


class SimulatedGPU:
    """A context manager in which the device `cuda` is there, for one thread.

    Attributes:
        counts: of all that has happened; another object may be put in its place.
    """

    def __init__(self) -> None:
        self.counts = DeviceCounts()
        self._memory: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()
        self._on_device, self._counting = False, True
        self._calls, self._stack = _Calls(self), contextlib.ExitStack()

    def __enter__(self) -> Self:
        run = torch.autograd._engine_run_backward  # type: ignore[attr-defined]
        generator = torch.Generator

        def backward(*args: Any, **kwargs: Any) -> Any:
            # Torch leaves a mode for the duration of the function that it shows it.
            active = self._calls in _get_current_function_mode_stack()
            with contextlib.nullcontext() if active else self._calls:
                return run(*args, **kwargs)

        def on_host(*_device: object) -> torch.Generator:
            return generator()

        self._stack.enter_context(mock.patch.object(torch.autograd, "_engine_run_backward", backward))
        self._stack.enter_context(mock.patch.object(torch, "Generator", on_host))
        self._stack.enter_context(watching(self._observe))
        self._stack.enter_context(self._calls)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def holds(self, x: Tensor) -> bool:
        """Whether a tensor lies on the device."""
        with torch._C.DisableTorchFunction():
            return x.untyped_storage() in self._memory

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A function of torch, as it is called in Python.

        Raises:
            RuntimeError: where the tensors of an operation lie on the device and on the host.
            TypeError: where a tensor of the device would become an array.
        """
        if type(func) is GETTER and func not in PROPERTIES:
            return func(*args)  # a shape, or a type of numbers, which is asked for most often
        inputs = list(tensors_in((*args, *kwargs.values())))
        on_device = any(map(self.holds, inputs))
        if func in MOVES:
            return self._moved(func, args, kwargs)
        if on_device and func in PROPERTIES:
            return PROPERTIES[func]
        if on_device and func in AS_ARRAY:
            raise TypeError(f"can't convert {GPU} device type tensor to numpy. Use Tensor.cpu() first.")
        if func is torch.Tensor.tolist:
            self.counts.waits += on_device
        if on_device and func is ATTENTION:
            return self._attention(inputs, args, kwargs)
        if func is torch.Tensor.__deepcopy__ and on_device:
            return self._placed(func(*args, **kwargs))  # type: ignore[no-untyped-call]
        device = kwargs.get("device")
        if device is None or torch.device(device).type == "meta":
            with self._within(on_device):
                return func(*args, **kwargs)
        return self._made(func, args, {**kwargs, "device": HOST}, torch.device(device).type == GPU.type)

    def _made(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], on_device: bool) -> Any:
        """A tensor made on a device that is named."""
        values = func in FROM_VALUES and on_device
        self.counts.copies += values
        with self._within(on_device, counting=not values):
            output = func(*args, **kwargs)
        return self._placed(output) if on_device else output

    def _moved(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """A tensor on another device, or in another type: `Tensor.to` and its shorter names."""
        x: Tensor = args[0]
        target, dtype = {torch.Tensor.cpu: HOST, torch.Tensor.cuda: GPU}.get(func), x.dtype
        for value in (*args[1:], *kwargs.values()):
            if isinstance(value, (str, torch.device)):
                target = torch.device(value)
            elif isinstance(value, torch.dtype):
                dtype = value
            elif isinstance(value, Tensor):
                target, dtype = GPU if self.holds(value) else HOST, value.dtype
        on_device = self.holds(x)
        if target is not None and target.type == "meta":
            return func(*args, **kwargs)  # type: ignore[no-any-return]
        if target is None or (target.type == GPU.type) == on_device:
            with self._within(on_device):
                return x.to(dtype, copy=bool(kwargs.get("copy", False)))
        return self._across(x, dtype, not on_device)

    def _across(self, x: Tensor, dtype: torch.dtype, to_device: bool) -> Tensor:
        """A copy of a tensor on the other side, whose gradient comes back."""
        if to_device:
            self.counts.copies += 1
        else:
            self.counts.waits += 1
        with self._within(to_device, counting=False), torch._C.DisableTorchFunction():
            copy = x.to(dtype, copy=True)
        if copy.requires_grad:
            copy.register_hook(lambda gradient: self._across(gradient, gradient.dtype, not to_device))
        return copy

    def _attention(self, inputs: list[Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """Attention is one kernel of a GPU, and on a CPU as many as its form there has."""
        self._check("scaled_dot_product_attention", [x for x in inputs if not isinstance(x, CausalBias)])
        self.counts.launches += 1
        with self._within(True, counting=False):
            out: Tensor = self._placed(ATTENTION(*args, **kwargs))
            return out

    @contextlib.contextmanager
    def _within(self, on_device: bool, *, counting: bool = True) -> Iterator[None]:
        """A call that makes tensors without others to follow on the device, or on the host."""
        before = self._on_device, self._counting
        self._on_device, self._counting = on_device, counting and self._counting
        try:
            yield
        finally:
            self._on_device, self._counting = before

    def _placed(self, result: Any) -> Any:
        for x in tensors_in(result):
            self._memory.add(x.untyped_storage())
        return result

    def _observe(self, op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any, inside: bool) -> None:
        """An operation that was computed on the host."""
        if inside:
            return
        name = str(op.name()).partition("::")[2].partition(".")[0]
        inputs = list(tensors_in((*args, *kwargs.values())))
        if self._counting:
            self._count(op, name, args, inputs)
        # Without tensors to follow, a result lies where the call in Python makes it.
        follow = bool(inputs) and self._counting and kwargs.get("device") is None
        if any(map(self.holds, inputs)) if follow else self._on_device:
            with torch._C.DisableTorchFunction():
                storages = {id(x.untyped_storage()) for x in inputs}
                self._placed([x for x in tensors_in(result) if id(x.untyped_storage()) not in storages])

    def _count(self, op: Any, name: str, args: tuple[Any, ...], inputs: list[Tensor]) -> None:
        device_inputs = [x for x in inputs if self.holds(x)]
        if not device_inputs:
            self.counts.launches += launches_of(op) if self._on_device and not inputs else 0
            return
        if name == "copy_" and self.holds(args[0]) != self.holds(args[1]):
            self.counts.copies += self.holds(args[0])
            self.counts.waits += not self.holds(args[0])
            return
        indices = list(tensors_in(args[1])) if name in INDEXING else []
        self._check(name, [x for x in inputs if not any(x is index for index in indices)])
        self.counts.copies += sum(not self.holds(index) for index in indices)
        self.counts.waits += name in WAITING or any(index.dtype == torch.bool for index in indices)
        self.counts.launches += 0 if name == TO_HOST else launches_of(op)

    def _check(self, name: str, inputs: list[Tensor]) -> None:
        """Refuse tensors of both sides; a number that is a tensor of the host goes along with a launch."""
        sides = {self.holds(x) for x in inputs if x.dim() or self.holds(x)}
        if len(sides) > 1:
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but found at least two devices, {GPU} and {HOST}! "
                f"(in {name})"
            )


class _Calls(TorchFunctionMode):
    """Shows a simulation what is called in Python."""

    def __init__(self, gpu: SimulatedGPU) -> None:
        super().__init__()
        self._gpu = gpu

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return self._gpu.call(func, args, dict(kwargs or {}))
