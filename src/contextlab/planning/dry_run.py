"""Reading on shapes alone: the method's own code runs on torch's meta device, and every operation is noted.

What a GPU would be given is counted: kernels, the weights that they read, and the bytes that are live after each of
them. Counts of rows stay real tensors on the host, as always, so that nothing waits for a number.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterable, Mapping
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from contextlab.accounting.flops import CALL_ARGUMENTS, named
from contextlab.accounting.memory import PeakMemory
from contextlab.accounting.watch import tensors_in, watching
from contextlab.kernels.dispatch import LAUNCHES
from contextlab.method import AnyMethod, Lengths, State
from contextlab.planning.shapes import META

NO_KERNELS = ("empty", "detach", "alias", "lift_fresh", "_unsafe_view", "new_empty")
"""Beginnings of the names of operations that give a GPU nothing to do, and are no views by their schema."""
GATHERS = ("embedding", "index_select")
"""Operations that read some rows of a weight."""
BANK = "bank.kv"
"""The part of a state that `stored_in=host` moves to the host."""
AHEAD = 2
"""Tokens of a text that are left when it is cut off, so that the token decoded after it ends no segment."""


@dataclasses.dataclass(frozen=True)
class NotedCall:
    """What a GPU would have done in one call.

    Attributes:
        launches: kernels.
        weight_bytes: of the weights that they read, as often as they do.
        live: bytes of tensors on the device, those of the state before included, at first and after every operation.
        ops: the operations.
    """

    launches: int
    weight_bytes: int
    live: list[int]
    ops: list[str]


@dataclasses.dataclass(frozen=True)
class DryRun:
    """A text that was read and one token that was decoded after it; bytes are without those of weights.

    Attributes:
        read: the text, in one call, without scoring it.
        decoded: the next token, and the distribution after it.
        tokens: of the text.
        state_bytes: of the state after the text.
        bank_bytes: of the part of it that may lie on the host.
        banks: layers of that part.
    """

    read: NotedCall
    decoded: NotedCall
    tokens: int
    state_bytes: int
    bank_bytes: int
    banks: int


def dry_run(method: AnyMethod, length: int, rows: int) -> DryRun:
    """Read a text of a length but for its last tokens, and decode one token after it.

    Args:
        method: on a backbone of `shapes`.
        length: tokens of the announced text, more than `AHEAD`.
        rows: texts side by side.
    """
    tokens_BT = torch.zeros(rows, length - AHEAD, dtype=torch.int64, device=META)
    with torch.inference_mode(), FusedAttention():
        state = method.start(rows, ahead=Lengths(length))
        with Observed(method, state) as reading:
            state, _ = method.read(state, tokens_BT, logprobs=False)
        state_bytes, bank = (
            state.nbytes,
            [x.nbytes for name, x in state.tensors().items() if name.startswith(BANK) and x.is_meta],
        )
        with Observed(method, state) as decoding:
            state, _ = method.read(state, tokens_BT[:, :1], logprobs=False)
            method.next_logprobs(state)
    return DryRun(reading.call, decoding.call, length - AHEAD, state_bytes, sum(bank), len(bank) // 2)


class Observed:
    """A context manager that notes what happens on the meta device, in `call` when it has ended.

    Args:
        method: whose weights are read.
        state: what is there before.
    """

    call: NotedCall

    def __init__(self, method: AnyMethod, state: State) -> None:
        self._weights = {id(x.untyped_storage()): x.untyped_storage() for x in weights(method)}
        self._memory = _Trace(state)
        self._stack = contextlib.ExitStack()
        self._launches, self._weight_bytes = 0, 0

    def __enter__(self) -> Self:
        self._stack.enter_context(self._memory)
        self._stack.enter_context(watching(self._observe))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()
        self.call = NotedCall(self._launches, self._weight_bytes, self._memory.live, self._memory.ops)

    def _observe(self, op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any, _inside: bool) -> None:
        inputs = [*tensors_in(args), *tensors_in(list(kwargs.values()))]
        if not any(x.is_meta for x in (*inputs, *tensors_in(result))) or launches_of(op) == 0:
            return
        self._launches += launches_of(op)
        if _name(op) not in GATHERS:
            read = {id(x.untyped_storage()): x.nbytes for x in inputs}
            self._weight_bytes += sum(size for key, size in read.items() if key in self._weights)


class FusedAttention(TorchFunctionMode):
    """Attention as one kernel that allocates its output alone, as torch's is on CUDA; on meta it would be many."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is not functional.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        arguments = named(CALL_ARGUMENTS, args, kwargs or {})
        query, value = arguments["query"], arguments["value"]
        # An operation that is no view and allocates nothing else.
        return torch.zeros((*query.shape[:-1], value.shape[-1]), dtype=query.dtype, device=query.device)


class _Trace(PeakMemory):
    """Bytes that are live after every operation that allocates, of which a state may give its own back."""

    def __init__(self, state: State) -> None:
        super().__init__(META)
        for storage in {x.untyped_storage() for x in state.tensors().values() if x.is_meta}:
            self._add(storage)
        self.live, self.ops = [self._live_bytes], [""]

    def _observe(self, op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any, _inside: bool) -> None:
        super()._observe(op, args, kwargs, result, _inside)
        if any(x.is_meta for x in tensors_in(result)):
            self.live.append(self._live_bytes)
            self.ops.append(_name(op))


@functools.cache
def launches_of(op: Any) -> int:
    """Kernels that one call of an operation gives to a GPU: none by a view, or by memory that is not written.

    A backward operation of this package counts as one.
    """
    name = _name(op)
    if op.namespace == "contextlab":
        return 1 if name.endswith("_backward") else LAUNCHES[name]
    returns = op._schema.returns
    view = bool(returns) and all(x.alias_info is not None and not x.alias_info.is_write for x in returns)
    return 0 if view or name.startswith(NO_KERNELS) else 1


def _name(op: Any) -> str:
    """An operation's name without its library and its overload."""
    return str(op.name()).partition("::")[2].partition(".")[0]


def weights(method: AnyMethod) -> Iterable[Tensor]:
    """The weights and constants of the model, and those that the method adds."""
    modules = [method.backbone.model, *([] if method.learned is None else [method.learned])]
    return [x for module in modules for x in (*module.parameters(), *module.buffers())]
