"""Tables of scores at several lengths, with the effective length of every method."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Sequence

import pandas

from contextlab.benchmarks.metrics.bootstrap import DRAWS
from contextlab.errors import UserError
from contextlab.harness import labels
from contextlab.harness.stored import Result
from contextlab.reports import captions, costs
from contextlab.reports.alike import mixtures, of_weights, with_mixtures
from contextlab.reports.break_even import questions_of
from contextlab.reports.cells import Cell, Column, Table
from contextlab.reports.dimensions import DIMENSIONS
from contextlab.reports.filters import LeftOut
from contextlab.reports.lengths import SHARE, EffectiveLength, LengthRow, chance_of, name_of, of_tasks
from contextlab.reports.names import Names

SHARE_WORDS = f"{100 * SHARE:g} % of the base"
HALVED = "*: below half of the base"
EFFECTIVE = ("effective_length", "effective_low", "effective_high")
FEW = 20
"""Clusters below which draws are known to vary too little (docs/statistics.md)."""


def tables(
    results: Sequence[Result],
    threshold: float | None = None,
    names: Names | None = None,
    left_out: LeftOut | None = None,
) -> Iterator[Table]:
    """One table for every task: scores at each length, effective lengths, and costs at the longest length.

    Args:
        results: from `reports.stored.summaries`.
        threshold: the least score that is enough; a share of the score at the shortest length when None.
        names: for display.
        left_out: stored runs that are not among the results.

    Raises:
        UserError: for a threshold that is no score, or as `lengths.of_tasks`.
    """
    _check(threshold)
    tasks, without = of_tasks(results, left_out)
    for rows in tasks.values():
        yield _table(rows, threshold, names or Names(), without)


def frame(
    results: Sequence[Result], threshold: float | None = None, left_out: LeftOut | None = None
) -> pandas.DataFrame:
    """The numbers of `tables` as one long frame: a row for every method, task and length.

    `effective_length` and its ends `effective_low` and `effective_high` are missing where the shortest length does not
    pass, `open_end` says whether the longest passes, and `attrs` has the sentence on runs that are left out.

    Raises:
        UserError: as `tables`.
    """
    _check(threshold)
    tasks, without = of_tasks(results, left_out)
    lengths_frame = pandas.DataFrame(
        [about for rows in tasks.values() for row in rows for about in _of_row(row, threshold)]
    )
    lengths_frame.attrs["left_out"] = without.sentence
    return lengths_frame.astype(dict.fromkeys((*EFFECTIVE, "state_bytes"), "Int64"))


def _check(threshold: float | None) -> None:
    if threshold is not None and not 0 < threshold <= 1:
        raise UserError(f"{threshold:g} is no threshold of scores between 0 and 1: write 0.856 for 85.6 %.")


def _table(rows: Sequence[LengthRow], threshold: float | None, names: Names, left_out: LeftOut) -> Table:
    """The table of one task."""
    differing = [key for key in DIMENSIONS if len({row.words[key] for row in rows}) > 1 and key != "method"]
    keys = ("method", *differing)
    shown = [(run, dict(row.words)) for row in rows for run in row.runs.values()]
    lengths = sorted({length for row in rows for length in row.lengths})
    of_longest = {row.lengths[-1] for row in rows}
    longest = f"at {name_of(*of_longest)}" if len(of_longest) == 1 else "at the longest length"
    measure = names.metric(rows[0].first.measure.name)
    columns = [
        *(Column(f"{measure} at", name_of(length), "metric", name_of(length)) for length in lengths),
        *([Column("", SHARE_WORDS, "metric", SHARE_WORDS)] if threshold is None else []),
        Column("", "effective length", "text", "effective length"),
        Column("", f"state MiB {longest}", "cost", f"state {longest}", "MiB"),
        Column("", f"TFLOPs per question {longest}", "cost", f"question {longest}", "TFLOP"),
    ]
    cells = {
        (number, place): cell
        for number, row in enumerate(rows)
        for place, cell in enumerate(_cells(row, lengths, threshold))
        if cell is not None
    }
    table = Table(
        keys,
        tuple(tuple(names.of(key, row.words[key]) for key in keys) for row in rows),
        tuple(columns),
        cells,
        (captions.about(shown, _examples(rows), differing, names), _meaning(rows, threshold)),
        tuple(_legend(rows, threshold, names)),
        left_out.sentence,
        (
            *captions.notes(shown, (), differing, names, noisy=False),
            *captions.of_costs(columns, noisy=False, each="question"),
        ),
    )
    runs = [run for run, _ in shown]
    table = with_mixtures(table, mixtures(runs, DIMENSIONS, names))
    table = dataclasses.replace(table, notes=(*table.notes, *of_weights(runs, names)))
    return table.part(range(len(rows)), [number for number in range(len(columns)) if table.column(number)])


def _cells(row: LengthRow, lengths: Sequence[int], threshold: float | None) -> Iterator[Cell | None]:
    """The numbers of a row, by column; None where there is none."""
    for length in lengths:
        run = row.runs.get(length)
        yield None if run is None else _score(run, halved=row.halved(length))
    if threshold is None:
        yield Cell(SHARE * row.base)
    effective = row.effective(threshold)
    yield None if effective is None else Cell(effective.tokens(effective.place) or 0, text=str(effective))
    yield costs.numbers(row.last).get("state MiB")
    flops = _flops(row.last)
    yield None if flops is None else Cell(flops / costs.TERA)


def _score(run: Result, *, halved: bool) -> Cell:
    metric = run.metrics[run.measure.name]
    return Cell(metric.value, metric.low, metric.high, halved=halved)


def _flops(run: Result) -> float | None:
    """FLOPs of one question."""
    cost = costs.numbers(run).get("TFLOPs query")
    return None if cost is None else cost.value * costs.TERA / questions_of(run)


def _of_row(row: LengthRow, threshold: float | None) -> Iterator[dict[str, object]]:
    """The numbers of a row in the frame."""
    effective = row.effective(threshold)
    of_all = {
        "base": row.base,
        "threshold": SHARE * row.base if threshold is None else threshold,
        **dict(zip(EFFECTIVE, _tokens(effective), strict=True)),
        "open_end": effective is not None and effective.place == len(row.lengths) - 1,
    }
    for length, run in row.runs.items():
        metric = run.metrics[run.measure.name]
        yield {
            **row.words,
            "run": run.run_id,
            "length": length,
            "metric": run.measure.name,
            "value": metric.value,
            "low": metric.low,
            "high": metric.high,
            "n": metric.n,
            "examples": run.data.examples,
            "halved": row.halved(length),
            **of_all,
            "state_bytes": run.state and run.state.bytes,
            "flops_per_question": _flops(run),
        }


def _tokens(effective: EffectiveLength | None) -> list[int | None]:
    """An effective length and the ends of its interval in tokens."""
    if effective is None:
        return [None] * 3
    return [
        None if place is None else effective.tokens(place)
        for place in (effective.place, *(effective.interval or (None, None)))
    ]


def _examples(rows: Iterable[LengthRow]) -> str:
    counts = {run.data.examples for row in rows for run in row.runs.values()}
    return f"n = {_range(counts)} example{'s' if counts != {1} else ''} at a length"


def _range(numbers: Collection[float]) -> str:
    return " to ".join(dict.fromkeys(f"{number:.4g}" for number in (min(numbers), max(numbers))))


def _meaning(rows: Iterable[LengthRow], threshold: float | None) -> str:
    """What an effective length is, and its interval."""
    has_draws = any(row.draws is not None for row in rows)
    of_base = f"{SHARE_WORDS}, which is the same method's score at its shortest length"
    least = of_base if threshold is None else f"{threshold:g}"
    bounds = (
        f"; in brackets {captions.BY_WORK}, of effective lengths from {DRAWS:,} draws of these" if has_draws else ""
    )
    return f"The effective length is the longest tested length at which the score is at least {least}{bounds}"


def _legend(rows: Sequence[LengthRow], threshold: float | None, names: Names) -> Iterator[str]:
    """What signs mean, how far a threshold can be trusted, and what labels stand for."""
    effective = [(names.of("method", row.words["method"]), row.effective(threshold)) for row in rows]
    texts = " ".join(str(of_method) for _, of_method in effective)
    if "<" in texts:
        yield "<: the shortest tested length does not pass"
    if ">" in texts:
        yield ">=: the longest tested length passes, and no longer one was tested"
    if any(row.halved(length) for row in rows for length in row.lengths):
        yield HALVED
    for method, of_method in effective:
        if of_method is not None and of_method.missed:
            yield f"{method} does not pass at {', '.join(map(name_of, of_method.missed))}, below its effective length"
    if threshold is None:
        yield "A share of the base says little where the base is near chance, as it may be for a small model"
    if threshold is None and any(row.base == 0 for row in rows):
        yield "A base of 0 has no share"
    if chances := [chance for row in rows if (chance := chance_of(row.first)) is not None]:
        yield f"Chance is {_range(chances)}, the base {_range([row.base for row in rows])}"
    if any(1 < row.clusters < FEW for row in rows):
        yield f"Intervals of effective lengths over fewer than {FEW} works, texts or conversations are too narrow"
    shown = [(run, dict(row.words)) for row in rows for run in row.runs.values()]
    yield from captions.own_windows(shown, names)
    labelled = ((names.of("method", row.words["method"]), row.first) for row in rows)
    yield from dict.fromkeys(line for label, run in labelled if (line := labels.legend(label, run)))
