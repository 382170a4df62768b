"""The costs of a run, by phase."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch
from torch import Tensor

from contextlab.accounting.flops import FlopCounter
from contextlab.accounting.memory import PeakMemory, storage_bytes
from contextlab.method import Ahead, Capabilities, ContextMethod, State

if TYPE_CHECKING:
    from contextlab.backbone import Backbone

Phase = Literal["train", "contextualize", "query"]
R = TypeVar("R")


@dataclasses.dataclass(frozen=True)
class Cost:
    """What calls cost together.

    Attributes:
        flops: model FLOPs, as `accounting.flops` counts them.
        peak_bytes: the most memory in use at one time, weights included.
        seconds: wall time.
        tokens: tokens processed, padding left out.
    """

    flops: int = 0
    peak_bytes: int = 0
    seconds: float = 0.0
    tokens: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.flops + other.flops,
            max(self.peak_bytes, other.peak_bytes),
            self.seconds + other.seconds,
            self.tokens + other.tokens,
        )

    def as_dict(self) -> dict[str, int | float]:
        """The fields as plain values, as stored with a result."""
        return dataclasses.asdict(self)


class Ledger:
    """Costs of calls of one method, added up by phase until they are taken.

    FLOPs and peak memory of calls with equal keys are equal, so only the first of them runs under the counters; its
    seconds include theirs. Seconds are taken with the device synchronised; warming up is the caller's.

    Args:
        device: where the calls run.
        counting: whether FLOPs and peak memory are wanted; without them both are 0.
        resident_bytes: what is in memory throughout: weights and added parameters (`memory.resident_bytes`).
    """

    def __init__(self, device: torch.device | str, *, counting: bool = True, resident_bytes: int = 0) -> None:
        self._device = torch.device(device)
        self._counting = counting
        self._resident_bytes = resident_bytes
        self._counts: dict[Hashable, tuple[int, int]] = {}
        self._costs: dict[str, Cost] = {}

    def call(
        self,
        phase: Phase,
        fn: Callable[[], R],
        *,
        tokens: int | Callable[[R], int],
        key: Hashable | None,
        held_bytes: int = 0,
    ) -> R:
        """Run `fn()` and enter its cost; a call that raises is not entered.

        Args:
            phase: where the cost belongs.
            fn: the call.
            tokens: tokens it processes, or a function that tells them from the result.
            key: equal for calls of the same arithmetic (see `signature`); None counts the call by itself.
            held_bytes: what it finds in memory beside the resident bytes.
        """
        counts = self._counts.get(key) if self._counting else (0, 0)
        with ExitStack() as stack:
            if counts is None:
                flops = stack.enter_context(FlopCounter())
                memory = stack.enter_context(PeakMemory(self._device, self._resident_bytes + held_bytes))
            started = self._now()
            result = fn()
            seconds = self._now() - started
        if counts is None:
            counts = flops.flops, memory.peak_bytes
            if key is not None:
                self._counts[key] = counts
        entered = Cost(*counts, seconds, tokens(result) if callable(tokens) else tokens)
        self._costs[phase] = self._costs.get(phase, Cost()) + entered
        return result

    def take(self) -> dict[str, Cost]:
        """The costs by phase since the last take."""
        costs, self._costs = self._costs, {}
        return costs

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()


def signature(*values: Any) -> Hashable:
    """A key that is equal for calls that do the same arithmetic.

    Tensors enter by shape, dtype and device, those that can be lengths or flags of rows (at most 64 integers or
    booleans in one dimension) by value too; states by their tensors; lists of tokens by their lengths; mappings,
    and whatever else is hashable, by value.
    """
    return tuple(_signature(value) for value in values)


def _signature(value: object) -> Hashable:
    if isinstance(value, Tensor):
        small = value.dim() <= 1 and value.numel() <= 64 and not (value.is_floating_point() or value.is_complex())
        return tuple(value.shape), value.dtype, value.device, str(value.tolist()) if small else None
    if isinstance(value, State):
        return type(value), _signature(value.tensors())
    if isinstance(value, Mapping):
        return tuple((name, _signature(item)) for name, item in value.items())
    if isinstance(value, (list, tuple)):
        tokens = all(isinstance(item, int) for item in value)
        return len(value) if tokens else tuple(_signature(item) for item in value)
    return value


class Meter:
    """A method whose every call is entered in a ledger: the calls and their results are the method's.

    Args:
        method: the method.
        ledger: where its costs go.
    """

    def __init__(self, method: ContextMethod, ledger: Ledger) -> None:
        self.method = method
        self._ledger = ledger
        self._state: dict[str, int] | None = None

    @property
    def backbone(self) -> Backbone:
        """The method's backbone."""
        return self.method.backbone

    @property
    def capabilities(self) -> Capabilities:
        """The method's capabilities."""
        return self.method.capabilities

    def start(self, batch_size: int = 1, *, ahead: Ahead | None = None) -> Any:
        """An empty state; costs nothing."""
        return self.method.start(batch_size, ahead=ahead)

    def read(
        self, phase: Phase, state: Any, tokens_BT: Tensor, lengths_B: Tensor | None = None, *, logprobs: bool = True
    ) -> tuple[Any, Tensor | None]:
        """`ContextMethod.read`, entered in `phase` with its unpadded tokens."""
        return self._ledger.call(
            phase,
            lambda: self.method.read(state, tokens_BT, lengths_B, logprobs=logprobs),
            tokens=tokens_BT.numel() if lengths_B is None else int(lengths_B.sum()),
            key=("read", logprobs, signature(state, tokens_BT, lengths_B)),
            held_bytes=_held(state),
        )

    def score(self, phase: Phase, state: Any, candidates: Sequence[Sequence[int]]) -> Tensor:
        """`ContextMethod.score`, entered in `phase` with the candidates' tokens of every row."""
        tokens: int = state.batch_size * sum(map(len, candidates))
        return self._ledger.call(
            phase,
            lambda: self.method.score(state, candidates),
            tokens=tokens,
            key=("score", signature(state, candidates)),
            held_bytes=_held(state),
        )

    def generate(self, phase: Phase, state: Any, prompts: Sequence[Sequence[int]], **options: Any) -> list[list[int]]:
        """`ContextMethod.generate`, entered in `phase` with the tokens of the prompts and those written."""
        # With stop tokens the content decides how much is computed, so that no two calls are known to be equal.
        key = None if options.get("stop") else ("generate", signature(state, prompts, options))
        return self._ledger.call(
            phase,
            lambda: self.method.generate(state, prompts, **options),
            tokens=lambda written: sum(map(len, prompts)) + sum(map(len, written)),
            key=key,
            held_bytes=_held(state),
        )

    def keep(self, state: Any) -> None:
        """Record the size of `state` as what must be kept; of several, the largest counts."""
        if self._state is None or state.nbytes > self._state["bytes"]:
            tokens = int(state.length_B.sum())
            self._state = {"bytes": state.nbytes, "floats": state.floats, "tokens": tokens, "cached": state.cached}

    def take(self) -> dict[str, Any]:
        """Cost by phase, and the size of what was kept (None when nothing was), of the example just finished."""
        state, self._state = self._state, None
        return {"cost": {phase: cost.as_dict() for phase, cost in self._ledger.take().items()}, "state": state}


def _held(state: State) -> int:
    return storage_bytes(state.tensors().values())
