"""The published and the measured numbers of an entry in one table, with what differs between them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from contextlab import grammar
from contextlab.cards import short_count
from contextlab.harness import labels
from contextlab.harness.stored import Result
from contextlab.reports.alike import mixtures, of_weights
from contextlab.reports.dimensions import once
from contextlab.reports.papers import stated as stated_here
from contextlab.reports.papers.measure import Measured
from contextlab.reports.papers.readings import gained, printed_change, reading
from contextlab.reports.papers.schema import ABSENT, Paper, PaperColumn, PaperEntry
from contextlab.reports.papers.sheet import Page, title

HEAD = ("", "paper", "here")
NOT_PRINTED = "not printed"
NOT_MEASURED = "not measured"


def comparison(paper: Paper, entry: PaperEntry, measurements: Sequence[Measured]) -> Page:
    """Published and measured numbers side by side, after what differs: model, data, size, training and machine."""
    results = [measured.result for measured in measurements if measured.result is not None]
    tasks = dict.fromkeys(measured.task for measured in measurements)
    absent = [
        task for task in tasks if all(measured.result is None for measured in measurements if measured.task == task)
    ]
    facts = [
        ("model", paper.model.about, _listed(result.backbone for result in results)),
        ("data", entry.data, _listed(f"{labels.of_result(result)}: {result.data.note}" for result in results)),
        ("size", entry.size, _listed(f"{labels.of_result(result)}: {_examples(result)}" for result in results)),
        ("training", paper.model.trained, _listed(filter(None, map(_training, measurements)))),
        ("machine", "", _listed(result.provenance.device for result in results)),
    ]
    numbers = list(_numbers(entry, [measured for measured in measurements if measured.task not in absent]))
    notes = [
        entry.about,
        *(entry.embedded.differs if entry.embedded else []),
        *_learned(measurements),
        *_remarks(entry),
    ]
    notes += [f"Not measured: {', '.join(absent)}."] if absent else []
    notes += _mixtures(measurements)
    return Page(title(paper, entry), [HEAD, *facts, *numbers], notes)


def stated(paper: Paper, entry: PaperEntry, data: Path | None = None) -> Page:
    """Published settings, sizes or prompts beside what this package states itself; see `stated.value`."""
    cells = entry.published()
    rows = [
        (f"{row}: {column}" if len(entry.stated) > 1 else row, cells[row][column], stated_here.value(of, data))
        for row in cells
        for column, of in ((part.column, part.of.get(row)) for part in entry.stated)
        if of is not None
    ]
    return Page(title(paper, entry), [HEAD, *rows], [entry.about, *_remarks(entry)])


def published(paper: Paper, entry: PaperEntry) -> Page:
    """An entry as the paper has it; corrected numbers follow the printed ones."""
    head = (*entry.keys, *(_named(column) for column in entry.columns))
    corrected = {(correction.row, correction.column): correction.corrected for correction in entry.corrections}
    names = list(entry.published())
    rows = [
        (
            *row[: len(entry.keys)],
            *(
                _with(cell, corrected.get((name, column.name)))
                for cell, column in zip(row[len(entry.keys) :], entry.columns, strict=True)
            ),
        )
        for name, row in zip(names, entry.rows, strict=True)
    ]
    table: list[tuple[str, ...]] = [head, *rows] if rows else [("values",), (NOT_PRINTED,)]
    return Page(title(paper, entry), table, [entry.about, *_remarks(entry)])


def _numbers(entry: PaperEntry, measurements: Sequence[Measured]) -> Iterator[tuple[str, str, str]]:
    """One line for every published number that has a counterpart."""
    cells = entry.published()
    corrected = {(correction.row, correction.column): correction.corrected for correction in entry.corrections}
    of_rows: dict[tuple[str, str], Measured] = {}
    for measured in measurements:
        for name in measured.run.read if measured.result is not None else ():
            of_rows.setdefault((measured.row, name), measured)
    for measured in measurements:
        for name in measured.run.read:
            unit, above = entry.unit(name), entry.baseline(measured.row) or ""
            printed = cells.get(measured.row, {}).get(name, NOT_PRINTED)
            gain = printed_change(printed, cells.get(above, {}).get(name), unit) if measured.row in cells else ""
            yield (
                f"{measured.row}: {_named(PaperColumn(name=name, unit=unit)) if unit else name}",
                _with(_bracketed(printed, gain), corrected.get((measured.row, name))),
                _here(measured, of_rows.get((above, name)), name, unit or name),
            )


def _here(measured: Measured, baseline: Measured | None, name: str, unit: str) -> str:
    """A measured number, beside its baseline's or with its own interval."""
    value = None if measured.result is None else reading(measured.result, measured.run.read[name], unit)
    if measured.result is None or value is None:
        return NOT_MEASURED
    metric, gains = measured.run.read[name], list[str]()
    if baseline is not None and baseline.result is not None:
        gains.append(gained(measured.result, baseline.result, metric, unit))
        if measured.twin is not None:
            gains.append(f"{gained(measured.result, measured.twin, metric, unit)} on its twin")
    gain = "; ".join(filter(None, gains))
    # The interval of a difference says more than that of a number whose examples differ much.
    shown = dataclasses.replace(value, low=None) if gain else value
    return f"{measured.method}: {_bracketed(shown.text(unit), gain)}"


def _remarks(entry: PaperEntry) -> list[str]:
    corrections = [
        f"{wrong.row}, {wrong.column}: printed {wrong.printed}, corrected {wrong.corrected}: {wrong.reason}."
        for wrong in entry.corrections
    ]
    return [*(f"The paper: {text}" for text in entry.says), *entry.remarks, *corrections]


def _named(column: PaperColumn) -> str:
    return f"{column.name} ({column.unit})"


def _with(cell: str, corrected: str | None) -> str:
    return cell if corrected is None else f"{cell}, corrected {corrected}"


def _bracketed(text: str, gain: str) -> str:
    return f"{text} ({gain})" if gain and text != ABSENT else text


def _examples(result: Result) -> str:
    count = result.data.examples
    return f"{count} example{'s' if count > 1 else ''}"


def _training(measured: Measured) -> str:
    """The training of the method of a run; empty where nothing is stored."""
    if measured.result is None:
        return ""
    if measured.result.cost.train is not None:
        return f"{_unmarked(measured.method)}: {short_count(measured.result.cost.train.tokens)} tokens"
    if measured.result.untrained:
        return f"{_unmarked(measured.method)}: untrained"
    return f"{measured.result.method}: nothing to learn"


def _learned(measurements: Sequence[Measured]) -> Iterator[str]:
    """Sentences on training: which methods have learned nothing, and the twins of the others."""
    untrained = dict.fromkeys(
        _unmarked(measured.method) for measured in measurements if measured.result and measured.result.untrained
    )
    if untrained:
        yield f"{', '.join(untrained)}: measured without any training."
    twins = dict.fromkeys(
        f"{_with_tokens(row.method, row.result)} has the twin {_with_tokens(labels.whole(row.twin), row.twin)}"
        for row in measurements
        if row.twin is not None
    )
    if twins:
        yield (
            "A twin has an update of the same size and no memory. As far as both have learned from as many tokens, "
            f"what is gained on it is the memory's: {'; '.join(twins)}."
        )


def _mixtures(measurements: Sequence[Measured]) -> Iterator[str]:
    """Differences between the results of the column `here` and of its twins, except in the device, which has its own
    row, and which of them have weights in more bits than now."""
    results = once(r for measured in measurements for r in (measured.result, measured.twin) if r is not None)
    for mixture in mixtures(results, {"device"}):
        yield f"{mixture.sentence}."
        if mixture.detail:
            yield f"{mixture.detail}."
    for sentence in of_weights(results):
        yield f"{sentence}."


def _with_tokens(label: str, result: Result | None) -> str:
    cost = None if result is None else result.cost.train
    return _unmarked(label) if cost is None else f"{_unmarked(label)} ({short_count(cost.tokens)} tokens)"


def _unmarked(label: str) -> str:
    return grammar.MARK.sub("", label).strip()


def _listed(texts: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(texts)) or ABSENT
