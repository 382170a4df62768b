"""The sentences of a table's caption: data, model, machine, and how its numbers are made."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from contextlab.harness.results import measure_of
from contextlab.reports.cells import Column, Table, paragraph
from contextlab.reports.costs import MOST_SPREAD
from contextlab.reports.dimensions import DIMENSIONS, Result, named
from contextlab.reports.names import Names

DISTURBED = (
    f"~: the middle half of the examples differs by more than {MOST_SPREAD:.0%} in seconds per FLOP, so that something "
    "else was running"
)
INTERVALS = (
    "In brackets 95 % intervals over clusters (works, texts, conversations, tasks), there are none for one cluster: t "
    "intervals corrected for skewness, Wilson's for numbers between 0 and 1"
)
BEFORE = (
    "Results of an earlier version have percentile bootstrap intervals, paired differences of means over the examples, "
    "and no share"
)
CONVENTIONS = {
    "TFLOPs": "a multiply-add is 2 FLOPs and causal attention is counted exactly",
    "seconds": "seconds are medians",
    "peak": "peak memory includes the weights",
    "state": "the state is what is kept between context and query",
}
"""How costs are counted, by the first word of their names."""
LEGACY = (
    "Legacy: multiply-accumulates as printed in the GenerativeAdapter paper, whose attention to a cached context is "
    "multiplied by the question's length once too often; cached: the same sizes (Mistral-7B), counted rightly; the "
    "query's tokens count as one question"
)
ALPHA = 0.05
Shown = Sequence[tuple[Result, dict[str, str]]]
"""Results with their names in every dimension."""


def data(shown: Shown, names: Names) -> str:
    """Which data the tasks have, each said once with the tasks that have it."""
    tasks: dict[str, list[str]] = {}
    for result, one in shown:
        about = f"{result['data']['note']} ({result['data']['source']})"
        tasks.setdefault(about, []).append(names.of("task", one["task"]))
    return "; ".join(f"{', '.join(dict.fromkeys(of))}: {about}" for about, of in tasks.items())


def circumstances(shown: Shown, differing: Collection[str], names: Names) -> Iterable[str]:
    """Model and machine, where methods end, their twins, and the kinds of intervals.

    Args:
        shown: every result with its name in each dimension.
        differing: dimensions in which the results differ.
        names: names for display.
    """
    words = shown[0][1]
    yield ", ".join(f"{name} {names.of(name, words[name])}" for name in DIMENSIONS[2:] if name not in differing)
    limits = dict.fromkeys((named(r), r["max_context"]) for r, _ in shown if r.get("max_context"))
    for method, tokens in limits:
        yield f"{names.of('method', method)} starts anew every {tokens:,} tokens"
    yield from dict.fromkeys(
        f"The twin of {names.of('method', named(r))}, without memory, is {names.of('method', r['twin'])}"
        for r, _ in shown
        if r.get("twin")
    )
    yield INTERVALS
    if any("measure" not in result for result, _ in shown):
        yield BEFORE


def of_columns(columns: Sequence[Column], *, noisy: bool) -> Iterable[str]:
    """How the costs that are there were counted.

    Args:
        columns: of the table.
        noisy: whether seconds were disturbed.
    """
    first = {column.name.split(" ")[0] for column in columns if column.kind == "cost"}
    said = [sentence for word, sentence in CONVENTIONS.items() if word in first]
    if said:
        yield f"Costs are per example; {'; '.join(said)}"
    if noisy and "seconds" in first:
        yield DISTURBED


def share(window: str, full: str, names: Names) -> str:
    """What the share of full attention's gain is.

    Args:
        window: method whose share is 0.
        full: method whose share is 1.
        names: names for display.
    """
    low, high = (names.of("method", name) for name in (window, full))
    return f"share = ({low} - method) / ({low} - {high}) in nats per token, with Fieller's intervals"


def directions(results: Iterable[Result], names: Names) -> Iterable[str]:
    """For every measure, whether higher or lower is better."""
    measures = dict.fromkeys(measure_of(result) for result in results)
    words = {True: "higher", False: "lower"}
    better = [
        f"{names.of('metric', one.name)} {words[one.higher_is_better]}"
        for one in measures
        if one.higher_is_better is not None
    ]
    if better:
        yield f"Better is: {', '.join(better)}"


def marked(table: Table, best: str, second: str) -> str:
    """Caption and details of a table, with what its marks mean where it has any."""
    return " ".join(filter(None, [paragraph(table.said), marks(table, best, second), paragraph(table.details)]))


def marks(table: Table, best: str, second: str) -> str:
    """What the marks of a table mean; empty where it has none.

    Args:
        table: the table.
        best: how the best number looks.
        second: how the second best number looks.
    """
    if not any(cell.mark for cell in table.cells.values()):
        return ""
    return (
        f"{best}: better than every other method of its column; {second}: better than every other method but the best; "
        "by paired tests over clusters between all pairs of methods, corrected by Holm's procedure to a family-wise "
        f"error of {ALPHA:.0%}."
    )
