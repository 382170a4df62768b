"""The costs that tables show: their columns, the groups that options name, and their numbers for a result."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from contextlab.accounting import legacy
from contextlab.errors import unknown
from contextlab.harness import stored
from contextlab.harness.stored import Result, StateSize
from contextlab.reports.cells import Cell, Column

MOST_SPREAD = 0.25
"""Seconds per FLOP of examples that differ by more are marked: another program was running."""
TERA, MEBI = 1e12, 2.0**20


@dataclasses.dataclass(frozen=True)
class CostColumn:
    """One column of costs.

    Attributes:
        name: heading in full, with the unit.
        title: heading in short.
        unit: its unit.
        groups: words of `--cost` that select it; the first is its own.
        measured: whether it depends on the machine, so that processor and GPU need separate columns.
    """

    name: str
    title: str
    unit: str
    groups: tuple[str, ...]
    measured: bool = False

    def column(self, group: str, suffix: str = "") -> Column:
        """The column in a group of columns; the suffix names a kind of machine."""
        title = f"{self.title} {suffix}".strip()
        return Column(group, f"{self.name} {suffix}".strip(), "cost", title, self.unit)


CATALOGUE = (
    CostColumn("TFLOPs contextualize", "context", "TFLOP", ("contextualize_flops", "flops", "contextualize", "all")),
    CostColumn("TFLOPs query", "query", "TFLOP", ("query_flops", "flops", "query", "all")),
    CostColumn(
        "TFLOPs contextualize by formula", "context, formula", "TFLOP", ("contextualize_flops_formula", "formula")
    ),
    CostColumn("TFLOPs query by formula", "query, formula", "TFLOP", ("query_flops_formula", "formula")),
    CostColumn("peak MiB", "peak", "MiB", ("peak_bytes", "peak", "all"), measured=True),
    CostColumn("seconds", "time", "s", ("seconds", "all"), measured=True),
    CostColumn("seconds contextualize", "context", "s", ("contextualize_seconds", "contextualize"), measured=True),
    CostColumn("seconds query", "query", "s", ("query_seconds", "query"), measured=True),
    CostColumn(
        "joules contextualize", "context", "J", ("contextualize_joules", "joules", "contextualize"), measured=True
    ),
    CostColumn("joules query", "query", "J", ("query_joules", "joules", "query"), measured=True),
    CostColumn("tokens contextualize", "context", "tokens", ("contextualize_tokens", "tokens", "contextualize")),
    CostColumn("tokens query", "query", "tokens", ("query_tokens", "tokens", "query")),
    CostColumn("state MiB", "state", "MiB", ("state_bytes", "state", "all")),
    CostColumn("state MiB by formula", "state, formula", "MiB", ("state_bytes_formula", "formula")),
    CostColumn("state floats", "state", "floats", ("state_floats",)),
    CostColumn("state tokens", "state", "tokens", ("state_tokens",)),
    CostColumn("cached tokens", "cached", "tokens", ("state_cached",)),
    CostColumn("TFLOPs train", "training", "TFLOP", ("train_flops", "train", "all")),
    CostColumn("seconds train", "training", "s", ("train_seconds", "train", "all")),
    CostColumn("tokens train", "training", "tokens", ("train_tokens", "train", "all")),
)
LEGACY = (
    CostColumn("legacy TMACs query", "legacy", "TMAC", ("legacy",)),
    CostColumn("cached TMACs query", "cached", "TMAC", ("legacy",)),
)
FEW = ("flops", "state", "train_flops")
"""The costs in a table where none are named."""


def selected(words: Sequence[str]) -> list[CostColumn]:
    """The costs that words of `--cost` name, in the order of the catalogue; `none` names none.

    Raises:
        UserError: for an unknown word.
    """
    groups = {"none", *(group for cost in CATALOGUE for group in cost.groups)}
    for word in words:
        if word not in groups:
            raise unknown("cost", word, groups)
    return [cost for cost in CATALOGUE if set(cost.groups) & set(words)]


def numbers(result: Result) -> dict[str, Cell]:
    """The costs of a result by their names; those that were not counted, or timed under counters, are missing."""
    phases = result.cost.phases()
    timed_alone = bool(phases) and not any(cost.timed_while_counting for cost in phases.values())
    values: dict[str, float] = {}
    for phase, cost in phases.items():
        if cost.flops is not None:
            values[f"TFLOPs {phase}"] = cost.flops / TERA
        if cost.flops_formula is not None:
            values[f"TFLOPs {phase} by formula"] = cost.flops_formula / TERA
        values[f"tokens {phase}"] = cost.tokens
        if cost.joules is not None:
            values[f"joules {phase}"] = cost.joules
        if timed_alone:
            values[f"seconds {phase}"] = cost.seconds
    if timed_alone:
        values["seconds"] = sum(cost.seconds for cost in phases.values())
    peaks = [cost.peak_bytes for cost in phases.values() if cost.peak_bytes is not None]
    if peaks:
        values["peak MiB"] = max(peaks) / MEBI
    values |= _state(result.state) | _training(result.cost.train)
    noisy = timed_alone and disturbed(result)
    return {name: Cell(value, disturbed=noisy and timed(name)) for name, value in values.items()}


def timed(name: str) -> bool:
    """Whether a cost is a time of reading or answering, which depends on threads and examples side by side."""
    return name.startswith("seconds") and name != "seconds train"


def disturbed(result: Result) -> bool:
    """Whether the seconds per FLOP of examples differ so much that another program was running."""
    return any((cost.seconds_spread or 0) > MOST_SPREAD for cost in result.cost.phases().values())


def legacy_numbers(result: Result) -> dict[str, Cell]:
    """The costs as the GenerativeAdapter paper counts them, in 10^12 multiply-accumulates."""
    question = 0 if result.cost.query is None else result.cost.query.tokens
    cached = 0 if result.state is None else result.state.cached or 0
    counts = (legacy.printed_macs(question, cached), legacy.cached_macs(question, cached))
    return {cost.name: Cell(macs / TERA) for cost, macs in zip(LEGACY, counts, strict=True)}


def _state(state: StateSize | None) -> dict[str, float]:
    if state is None:
        return {}
    values = {"state MiB": state.bytes / MEBI, "state floats": state.floats, "state tokens": state.tokens}
    if state.bytes_formula is not None:
        values["state MiB by formula"] = state.bytes_formula / MEBI
    return values if state.cached is None else {**values, "cached tokens": state.cached}


def _training(cost: stored.PhaseCost | None) -> dict[str, float]:
    """The cost of training the weights, where that is known."""
    if cost is None:
        return {}
    flops = {} if cost.flops is None else {"TFLOPs train": cost.flops / TERA}
    return {**flops, "seconds train": cost.seconds, "tokens train": cost.tokens}
