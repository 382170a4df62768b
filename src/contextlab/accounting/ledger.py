"""The costs of a run, by phase."""

from __future__ import annotations

import dataclasses
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch
from torch import Tensor

from contextlab.accounting import energy
from contextlab.accounting.flops import FlopCounter
from contextlab.accounting.memory import PeakMemory, storage_bytes
from contextlab.accounting.products import ProductCounter
from contextlab.errors import UserError
from contextlab.formula import Formula, Row, total
from contextlab.method import AnyMethod, Capabilities, Lengths, State

if TYPE_CHECKING:
    from contextlab.backbone import Backbone


Phase = Literal["train", "contextualize", "query"]
R = TypeVar("R")

KEPT = 3
"""Number of largest calls of every kind that are kept, to be run again."""
SHARE_AGAIN = 0.04
"""Share of the FLOPs of all calls that may run again, in addition to the calls that must run again."""


@dataclasses.dataclass(frozen=True)
class TotalCost:
    """The total cost of several calls.

    Attributes:
        flops: model FLOPs, as `accounting.flops` counts them; None when they were not counted.
        flops_formula: the same by the method's formula; None where it has none for one of the calls.
        peak_bytes: the most memory in use at one time, weights included; None where it was not measured.
        seconds: wall time.
        tokens: tokens processed, without padding.
        largest_bytes: bytes of the largest call: of its state, result and copies, and of its largest product.
        joules: energy that the GPU used in the meantime (`accounting.energy`); None where nothing counts it.
    """

    flops: int | None = 0
    peak_bytes: int | None = None
    seconds: float = 0.0
    tokens: int = 0
    largest_bytes: int = 0
    flops_formula: int | None = 0
    joules: float | None = 0.0

    def __add__(self, other: TotalCost) -> TotalCost:
        peaks = [peak for peak in (self.peak_bytes, other.peak_bytes) if peak is not None]
        return TotalCost(
            total([self.flops, other.flops]),
            max(peaks, default=None),
            self.seconds + other.seconds,
            self.tokens + other.tokens,
            max(self.largest_bytes, other.largest_bytes),
            total([self.flops_formula, other.flops_formula]),
            None if self.joules is None or other.joules is None else self.joules + other.joules,
        )

    def as_dict(self) -> dict[str, Any]:
        """The fields as plain values, as stored with a result."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class ReadText:
    """The text that a state of one row has read.

    Attributes:
        formula: of its method, for what was announced at its start; None where there is none, and every answer is None.
        before: tokens read.
    """

    formula: Formula | None = None
    before: int = 0

    def after(self, tokens: int) -> ReadText:
        """The text with so many tokens more."""
        return ReadText(self.formula, self.before + tokens)

    def read(self, tokens: int, *, logprobs: bool) -> int | None:
        """FLOPs of reading on."""
        return None if self.formula is None else self.formula.read([Row(self.before, tokens)], logprobs=logprobs)

    def score(self, candidates: Sequence[Sequence[int]]) -> int | None:
        """FLOPs of scoring candidates."""
        return (
            None
            if self.formula is None
            else self.formula.score(self.before, [len(candidate) for candidate in candidates])
        )

    def generate(
        self, prompts: Sequence[Sequence[int]], written: Sequence[Sequence[int]], max_new_tokens: int
    ) -> int | None:
        """FLOPs of writing what was written."""
        prompt_lengths, written_lengths = ([len(text) for text in texts] for texts in (prompts, written))
        return (
            None
            if self.formula is None
            else self.formula.generate(self.before, prompt_lengths, written_lengths, max_new_tokens)
        )

    @property
    def state_bytes(self) -> int | None:
        """Bytes of the state."""
        return None if self.formula is None else self.formula.state_bytes(self.before)


class ReadTexts:
    """The texts of states that somebody still holds."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[State], ReadText]] = {}

    def put(self, state: State, text: ReadText) -> None:
        """Note what a state has read."""
        number = id(state)
        if text.formula is not None and state.batch_size == 1:
            self._known[number] = weakref.ref(state, lambda _: self._known.pop(number, None)), text

    def of(self, state: State) -> ReadText:
        """The text of a state; a text without a formula for a state that was not noted."""
        reference, text = self._known.get(id(state), (None, ReadText()))
        return text if reference is not None and reference() is state else ReadText()


@dataclasses.dataclass(frozen=True)
class _Call:
    """A call that can be run again, with the bytes of its state and result, and its products."""

    run: Callable[[], object]
    held_bytes: int
    returned_bytes: int
    products: ProductCounter

    @property
    def bytes(self) -> int:
        """Bytes of its state, result and copies, and of its largest product."""
        computed = self.products.largest_bytes + self.products.copied_bytes
        return self.held_bytes + self.returned_bytes + computed


class Ledger:
    """Costs of the calls of one method, summed by phase until `take`.

    Results and seconds come from the unchanged call. FLOPs are those of its products (`accounting.products`). On a GPU
    the allocator reports peak memory after every call; elsewhere `peaks` runs the largest calls of every kind a second
    time under the watch. Seconds are measured with the device synchronised; the caller warms up.

    Args:
        device: where the calls run.
        counting: whether to count FLOPs and peak memory; both are None otherwise.
        watching: whether to count FLOPs by running every call a second time under the watch, for methods with products
            that are not called from Python.
        resident_bytes: bytes of weights and added parameters (`memory.resident_bytes`).

    Attributes:
        missed: whether the watch counted other FLOPs than the products, so that FLOPs so far are wrong.
    """

    def __init__(
        self, device: torch.device | str, *, counting: bool = True, watching: bool = False, resident_bytes: int = 0
    ) -> None:
        self.missed = False
        self._device = torch.device(device)
        self._counting, self._watching = counting, watching
        self._resident_bytes = resident_bytes
        self._joules = energy.meter(device)
        self._costs: dict[Phase, TotalCost] = {}
        self._flops = 0
        self._largest: dict[tuple[Phase, str, bool], list[_Call]] = {}

    def call(
        self,
        phase: Phase,
        fn: Callable[[], R],
        *,
        tokens: int | Callable[[R], int],
        kind: str,
        held_bytes: int = 0,
        formula: Callable[[R], int | None] = lambda _: None,
    ) -> R:
        """Run `fn()` and record its cost; a call that raises is not recorded.

        Args:
            phase: the phase of the cost.
            fn: the call; it can be run again.
            tokens: number of tokens it processes, or a function that computes this from the result.
            kind: name of the kind of call; calls of one kind can be compared by their sizes.
            held_bytes: bytes in memory before the call, without the resident bytes.
            formula: its FLOPs by arithmetic, from the result; None where that is unknown.
        """
        if self._reads_allocator:
            torch.cuda.reset_peak_memory_stats(self._device)
        with ProductCounter() if self._counting else nullcontext() as products:
            started, before = self._now(), self._energy()
            result = fn()
            seconds = self._now() - started
        after = self._energy()
        joules = None if before is None or after is None else after - before
        read = tokens(result) if callable(tokens) else tokens
        entered = TotalCost(None, None, seconds, read, joules=joules, flops_formula=formula(result))
        if products is not None:
            call = _Call(fn, held_bytes, _bytes_of(result), products)
            entered = self._counted(entered, phase, kind, call)
        self.enter(phase, entered)
        return result

    def enter(self, phase: Phase, cost: TotalCost) -> None:
        """Add a cost to a phase."""
        self._costs[phase] = self._costs.get(phase, TotalCost()) + cost

    def take(self) -> dict[Phase, TotalCost]:
        """The costs by phase since the last `take`."""
        costs, self._costs = self._costs, {}
        return costs

    def peaks(self) -> dict[str, int]:
        """The highest peak of all calls so far, by phase, in bytes; empty on a GPU, where every call has its own."""
        peaks: dict[str, int] = {}
        flops_left = self._flops * SHARE_AGAIN
        for (phase, *_), calls in self._largest.items():
            for rank, call in enumerate(calls):
                if not _must_run_again(rank, calls):
                    if call.products.flops > flops_left:
                        break
                    flops_left -= call.products.flops
                flops, peak = self._watched(call)
                self.missed |= flops != call.products.flops and not self._watching
                peaks[phase] = max(peak, peaks.get(phase, 0))
        return peaks

    def watching_one(self) -> Ledger:
        """An empty ledger for the same device that counts FLOPs under the watch."""
        return Ledger(self._device, watching=True, resident_bytes=self._resident_bytes)

    @property
    def _reads_allocator(self) -> bool:
        return self._counting and self._device.type == "cuda"

    def _counted(self, cost: TotalCost, phase: Phase, kind: str, call: _Call) -> TotalCost:
        flops = self._watched(call)[0] if self._watching else call.products.flops
        if self._reads_allocator:
            return dataclasses.replace(cost, flops=flops, peak_bytes=torch.cuda.max_memory_allocated(self._device))
        # A call that passes a boundary of a segment may need more memory than a larger call that does not: it has more
        # products, or its result is smaller than its state.
        key = phase, kind, call.returned_bytes < call.held_bytes
        self._largest[key] = _largest([call, *self._largest.get(key, [])])
        self._flops += flops
        return dataclasses.replace(cost, flops=flops, largest_bytes=call.bytes)

    def _watched(self, call: _Call) -> tuple[int, int]:
        """FLOPs and peak of a call that is run again under the watch."""
        with FlopCounter() as flops, PeakMemory(self._device, self._resident_bytes + call.held_bytes) as memory:
            call.run()
        return flops.flops, memory.peak_bytes

    def _energy(self) -> float | None:
        return None if self._joules is None else self._joules()

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()


def _largest(calls: list[_Call]) -> list[_Call]:
    """The calls that may have the highest peak: the one with most products, then the largest ones."""
    most = max(calls, key=lambda call: (call.products.count, call.bytes))
    others = sorted((call for call in calls if call is not most), key=lambda call: call.bytes, reverse=True)
    return [most, *others[:KEPT]]


def _must_run_again(rank: int, calls: list[_Call]) -> bool:
    """Whether a call of `_largest` must run again: the one with most products, and the largest one."""
    return rank == 0 or (rank == 1 and calls[1].bytes > calls[0].bytes)


def _bytes_of(result: object) -> int:
    """Bytes of the tensors in a result."""
    if isinstance(result, State):
        return _held(result)
    if isinstance(result, Tensor):
        return storage_bytes([result])
    return sum(map(_bytes_of, result)) if isinstance(result, tuple) else 0


class Meter:
    """A method whose calls are recorded in a ledger; calls and results are the method's own.

    Args:
        method: the method.
        ledger: the ledger for its costs.

    Attributes:
        example: id of the current example, for errors.
    """

    def __init__(self, method: AnyMethod, ledger: Ledger) -> None:
        self.method = method
        self.ledger = ledger
        self.example = ""
        self._state: dict[str, Any] | None = None
        self._texts = ReadTexts()

    @property
    def backbone(self) -> Backbone:
        """The method's backbone."""
        return self.method.backbone

    @property
    def capabilities(self) -> Capabilities:
        """The method's capabilities."""
        return self.method.capabilities

    def start(self, batch_size: int = 1, *, ahead: Lengths | None = None) -> State:
        """An empty state; costs nothing."""
        state: State = self.method.start(batch_size, ahead=ahead)
        self._texts.put(state, ReadText(self.method.formula(ahead)))
        return state

    def read(
        self, phase: Phase, state: State, tokens_BT: Tensor, lengths_B: Tensor | None = None, *, logprobs: bool = True
    ) -> tuple[State, Tensor | None]:
        """`AnyMethod.read`, recorded in `phase` with its unpadded tokens.

        Raises:
            UserError: when a log-probability is not finite.
        """
        text, tokens = self._texts.of(state), tokens_BT.numel() if lengths_B is None else int(lengths_B.sum())
        after, logprobs_BT = self.ledger.call(
            phase,
            lambda: self.method.read(state, tokens_BT, lengths_B, logprobs=logprobs),
            tokens=tokens,
            kind="read" if logprobs else "read silently",
            held_bytes=_held(state),
            formula=lambda _: text.read(tokens, logprobs=logprobs),
        )
        self._texts.put(after, text.after(tokens))
        self._check_finite(logprobs_BT)
        return after, logprobs_BT

    def score(self, phase: Phase, state: State, candidates: Sequence[Sequence[int]]) -> Tensor:
        """`AnyMethod.score`, recorded in `phase` with the candidates' tokens of every row.

        Raises:
            UserError: when a log-probability is not finite.
        """
        logprobs_BNM = self.ledger.call(
            phase,
            lambda: self.method.score(state, candidates),
            tokens=state.batch_size * sum(map(len, candidates)),
            kind="score",
            held_bytes=_held(state),
            formula=lambda _: self._texts.of(state).score(candidates),
        )
        self._check_finite(logprobs_BNM)
        return logprobs_BNM

    def generate(self, phase: Phase, state: State, prompts: Sequence[Sequence[int]], **options: Any) -> list[list[int]]:
        """`AnyMethod.generate`, recorded in `phase` with the prompts' and the written tokens."""
        return self.ledger.call(
            phase,
            lambda: self.method.generate(state, prompts, **options),
            tokens=lambda written: sum(map(len, prompts)) + sum(map(len, written)),
            kind="generate",
            held_bytes=_held(state),
            formula=lambda written: self._texts.of(state).generate(prompts, written, options["max_new_tokens"]),
        )

    def _check_finite(self, logprobs: Tensor | None) -> None:
        """Refuse log-probabilities that are not finite, because `min` and `argmax` over NaN still return a number."""
        if logprobs is not None and not bool(logprobs.isfinite().all()):
            example = f" on example '{self.example}'" if self.example else ""
            raise UserError(
                f"{type(self.method).__name__} gives log-probabilities that are not finite{example}: try --dtype "
                "float32, a smaller lr where the method has one, or other weights."
            )

    def keep(self, state: State) -> None:
        """Record the size of `state` as what must be kept; the largest of several counts."""
        if self._state is None or state.nbytes > self._state["bytes"]:
            tokens = int(state.length_B.sum())
            self._state = {"bytes": state.nbytes, "floats": state.floats, "tokens": tokens, "cached": state.cached}
            self._state["bytes_formula"] = self._texts.of(state).state_bytes

    def take(self) -> dict[str, Any]:
        """Cost by phase and size of the kept state (None without one), since the last `take`."""
        state, self._state = self._state, None
        return {"cost": {phase: cost.as_dict() for phase, cost in self.ledger.take().items()}, "state": state}


def _held(state: State) -> int:
    return storage_bytes(state.tensors().values())
