"""Limits of cost: which results stay under 32 MB of state, or under 1 TFLOP."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence

from contextlab.errors import UserError, short, unknown
from contextlab.harness.stored import Result
from contextlab.reports.costs import MEBI, TERA, numbers

FORM = re.compile(r"\s*(\w+)\s*(?:=|<=|<)\s*([\d.]+(?:e[+-]?\d+)?)\s*([A-Za-z]*)\s*")
PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30}
TIMES = {"s": 1.0, "ms": 1e-3, "min": 60.0, "h": 3600.0}
UNITS = {
    "B": {f"{prefix}B": size for prefix, size in PREFIXES.items()},
    "FLOP": {f"{prefix}{unit}": PREFIXES[prefix] for prefix in ("", "M", "G", "T", "P") for unit in ("FLOP", "FLOPs")},
    "s": TIMES,
}
"""Units by what they measure."""


@dataclasses.dataclass(frozen=True)
class Limit:
    """The most that a result may cost.

    Attributes:
        cost: one of `COSTS`.
        most: in bytes, FLOPs or seconds.
        text: as it was written.
    """

    cost: str
    most: float
    text: str

    @classmethod
    def parse(cls, text: str) -> Limit:
        """A limit as `state=32MB`.

        Raises:
            UserError: when it has another form, or an unknown cost or unit.
        """
        match = FORM.fullmatch(text)
        if match is None:
            raise UserError(f"'{short(text)}' is no limit: write a cost, = and a number with its unit, as state=32MB.")
        cost, number, unit = match.groups()
        if cost not in COSTS:
            raise unknown("cost", cost, COSTS)
        units = UNITS[COSTS[cost][0]]
        if unit not in units:
            raise unknown(f"unit of {cost}", unit, units)
        return cls(cost, float(number) * units[unit], text.strip())

    def holds(self, result: Result) -> bool:
        """Whether the result has this cost, and no more of it."""
        cost = COSTS[self.cost][1](result)
        return cost is not None and cost <= self.most


def under(results: Sequence[Result], limits: Sequence[Limit]) -> list[Result]:
    """The results within all limits.

    Raises:
        UserError: when none is.
    """
    left = [result for result in results if all(limit.holds(result) for limit in limits)]
    if not left:
        raise UserError(f"No result is under {', '.join(limit.text for limit in limits)}: raise the limit.")
    return left


def _of(*names: str, scale: float) -> Callable[[Result], float | None]:
    """The sum of costs of a result; None where it has none of them."""

    def total(result: Result) -> float | None:
        known = numbers(result)
        values = [known[name].value for name in names if name in known]
        return sum(values) * scale if values else None

    return total


COSTS: dict[str, tuple[str, Callable[[Result], float | None]]] = {
    "state": ("B", _of("state MiB", scale=MEBI)),
    "peak": ("B", _of("peak MiB", scale=MEBI)),
    "flops": ("FLOP", _of("TFLOPs contextualize", "TFLOPs query", scale=TERA)),
    "contextualize": ("FLOP", _of("TFLOPs contextualize", scale=TERA)),
    "query": ("FLOP", _of("TFLOPs query", scale=TERA)),
    "train": ("FLOP", _of("TFLOPs train", scale=TERA)),
    "seconds": ("s", _of("seconds", scale=1.0)),
}
"""What can be limited, with the unit and the number of a result."""
