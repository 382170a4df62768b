"""Batches: how many examples of a run are computed side by side, and which.

Where costs are counted, the longest example is computed alone, and first: it shows whether the method's formula, which
the others are charged by, gives the FLOPs that are counted, and its peak memory is that of the run. Of the others,
those of similar length are put together. What cannot be computed side by side is computed alone, as without batches.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import psutil
import torch

from contextlab import process
from contextlab.accounting.ledger import Meter
from contextlab.errors import UserError
from contextlab.harness import together
from contextlab.harness.stored import ExampleLine
from contextlab.method import AnyMethod

Size = int | Literal["auto"]
Line = Callable[[Meter, int], ExampleLine]
"""Computes the line of an example, by its number in the data."""

MOST = 64
"""The most examples that `auto` computes side by side."""
WINDOW = 32
"""Batches among whose examples the similar ones are put together; what is stored grows in the usual order of these."""
SHARE = 0.5
"""Share of the free memory that `auto` fills."""


def size_of(batch: int | str) -> Size:
    """The size that was asked for.

    Raises:
        UserError: when it is none.
    """
    if batch == "auto":
        return "auto"
    if isinstance(batch, bool) or not str(batch).isdecimal() or int(batch) < 1:
        raise UserError(f"--batch {batch} is no number of examples: give 1 or more, or auto.")
    return int(batch)


@dataclasses.dataclass
class Batches:
    """Computes the examples of a run, some of them side by side.

    Attributes:
        size: most examples at one time, or `auto`.
        meter: of the examples that are computed alone.
        line: computes a line, from random numbers that have been seeded.
        draws: the random numbers of an example.
        lengths: of all examples, in some unit.
        note: takes a sentence about what was not done as asked.
    """

    size: Size
    meter: Meter
    line: Line
    draws: Callable[[int], process.RandomTurns]
    lengths: Sequence[int]
    note: Callable[[str], None]

    def lines(self, missing: Sequence[int], *, counting: bool) -> Iterator[ExampleLine]:
        """The lines of examples; those of one batch in their usual order.

        Args:
            missing: numbers of the examples.
            counting: whether FLOPs are counted.
        """
        waiting = list(missing)
        if self.size == 1 or len(waiting) < 2 or self._refused(counting):
            yield from map(self._alone, waiting)
            return
        size = self.size
        if counting or size == "auto":
            longest = max(waiting, key=self.lengths.__getitem__)
            waiting.remove(longest)
            yield (first := self._alone(longest))
            size = self._size_after(first, counting)
        while waiting:
            window = sorted(waiting[: size * WINDOW], key=self.lengths.__getitem__)
            del waiting[: size * WINDOW]
            while window:
                side_by_side = min(size, len(window))
                try:
                    lines = self._together(window[:size], counting) if side_by_side > 1 else None
                except Exception as error:
                    size = self._smaller(error, side_by_side)
                    continue
                batch = sorted(window[:size])
                yield from map(self._alone, batch) if lines is None else lines
                del window[:size]

    def _size_after(self, first: ExampleLine, counting: bool) -> int:
        """The size for all others, from an example that was computed alone."""
        if counting and any(cost.flops != cost.flops_formula for cost in first.cost.values()):
            return self._give_up("its formula does not give the FLOPs that are counted")
        return self._fitting(first) if self.size == "auto" else self.size

    def _alone(self, number: int) -> ExampleLine:
        with self.draws(number).turn():
            return self.line(self.meter, number)

    def _together(self, numbers: Sequence[int], counting: bool) -> list[ExampleLine]:
        def evaluate(number: int) -> Callable[[Meter], ExampleLine]:
            return lambda meter: self.line(meter, number)

        examples = [(evaluate(number), self.draws(number)) for number in sorted(numbers)]
        lines = together.evaluated(self.meter.method, examples, counting=counting)
        return [line.model_copy(update={"batch": len(lines)}) for line in lines]

    def _refused(self, counting: bool) -> bool:
        """Whether all examples are computed alone, which is noted."""
        method = self.meter.method
        reasons = {
            "it needs gradients": method.capabilities.needs_gradients,
            "its rows are not independent": not method.capabilities.independent_rows,
            "no formula says what its calls cost (add --no-count to batch it)": counting and method.formula() is None,
        }
        reason = next((text for text, holds in reasons.items() if holds), None)
        if reason is not None:
            self._give_up(reason)
        return reason is not None

    def _give_up(self, reason: str) -> int:
        self.note(f"{_name(self.meter.method)} computes its examples one by one: {reason}.")
        return 1

    def _smaller(self, error: Exception, size: int) -> int:
        """The size to go on with after a batch that has failed; errors of an example are raised where it is alone."""
        if isinstance(error, UserError):
            return 1
        if not process.out_of_memory(error):
            reason = str(error) if isinstance(error, together.Unsuited) else f"{type(error).__name__}: {error}"
            return self._give_up(reason)
        self.note(f"{size} examples of {_name(self.meter.method)} do not fit into memory: going on with {size // 2}.")
        return size // 2

    def _fitting(self, first: ExampleLine) -> int:
        """The largest power of two of examples like the first that fit into the memory that is free."""
        device = self.meter.backbone.device
        cuda = device.type == "cuda"
        free = torch.cuda.mem_get_info(device)[0] if cuda else psutil.virtual_memory().available
        calls = [cost.largest_bytes for cost in first.cost.values()]
        state_bytes = 2 * first.state.bytes if first.state is not None else 0
        count = int(SHARE * free) // max(*calls, state_bytes, 1)
        return min(MOST, 1 << max(count, 1).bit_length() - 1)


def _name(method: AnyMethod) -> str:
    return type(method).__name__


def lengths_of(examples: Sequence[Any]) -> list[int]:
    """Characters of all texts of every example."""
    lengths: dict[int, int] = {}
    return [_length(example, lengths) for example in examples]


def _length(value: Any, lengths: dict[int, int]) -> int:
    """Characters of the texts in a nest of dataclasses and tuples; examples may share large ones."""
    if isinstance(value, str):
        return len(value)
    if dataclasses.is_dataclass(value):
        return sum(_length(getattr(value, field.name), lengths) for field in dataclasses.fields(value))
    if not isinstance(value, tuple | list):
        return 0
    if id(value) not in lengths:
        lengths[id(value)] = sum(_length(item, lengths) for item in value)
    return lengths[id(value)]
