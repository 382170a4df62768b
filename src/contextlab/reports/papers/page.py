"""The published and the measured numbers of an entry in one table, with what differs between them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

from contextlab.cards import short_count
from contextlab.harness import labels
from contextlab.harness.stored import Result
from contextlab.reports.papers.measure import Measured
from contextlab.reports.papers.readings import gained, printed_change, reading
from contextlab.reports.papers.schema import ABSENT, Column, Entry, Paper
from contextlab.reports.papers.sheet import Page, title

HEAD = ("", "paper", "here")
NOT_PRINTED = "not printed"
NOT_MEASURED = "not measured"


def comparison(paper: Paper, entry: Entry, found: Sequence[Measured]) -> Page:
    """Published and measured numbers side by side, after what differs: model, data, size, training and machine."""
    results = [one.result for one in found if one.result is not None]
    tasks = dict.fromkeys(one.task for one in found)
    absent = [task for task in tasks if all(one.result is None for one in found if one.task == task)]
    facts = [
        ("model", paper.model.about, _listed(result.backbone for result in results)),
        ("data", entry.data, _listed(f"{labels.of_result(result)}: {result.data.note}" for result in results)),
        ("size", entry.size, _listed(f"{labels.of_result(result)}: {_examples(result)}" for result in results)),
        ("training", paper.model.trained, _listed(map(_training, results))),
        ("machine", "", _listed(result.provenance.device for result in results)),
    ]
    numbers = list(_numbers(entry, [one for one in found if one.task not in absent]))
    notes = [entry.about, *(entry.embedded.differs if entry.embedded else []), *_remarks(entry)]
    notes += [f"Not measured: {', '.join(absent)}."] if absent else []
    return Page(title(paper, entry), [HEAD, *facts, *numbers], notes)


def published(paper: Paper, entry: Entry) -> Page:
    """An entry as the paper has it; corrected numbers follow the printed ones."""
    head = (*entry.keys, *(_named(column) for column in entry.columns))
    corrected = {(one.row, one.column): one.corrected for one in entry.corrections}
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


def _numbers(entry: Entry, found: Sequence[Measured]) -> Iterator[tuple[str, str, str]]:
    """One line for every published number that has a counterpart."""
    cells = entry.published()
    corrected = {(one.row, one.column): one.corrected for one in entry.corrections}
    of_rows: dict[tuple[str, str], Measured] = {}
    for one in found:
        for name in one.run.read if one.result is not None else ():
            of_rows.setdefault((one.row, name), one)
    for one in found:
        for name in one.run.read:
            unit, above = entry.unit(name), entry.baseline(one.row) or ""
            printed = cells.get(one.row, {}).get(name, NOT_PRINTED)
            gain = printed_change(printed, cells.get(above, {}).get(name), unit) if one.row in cells else ""
            yield (
                f"{one.row}: {_named(Column(name=name, unit=unit)) if unit else name}",
                _with(_bracketed(printed, gain), corrected.get((one.row, name))),
                _here(one, of_rows.get((above, name)), name, unit or name),
            )


def _here(one: Measured, baseline: Measured | None, name: str, unit: str) -> str:
    """A measured number, beside its baseline's or with its own interval."""
    value = None if one.result is None else reading(one.result, one.run.read[name], unit)
    if one.result is None or value is None:
        return NOT_MEASURED
    gain = ""
    if baseline is not None and baseline.result is not None:
        gain = gained(one.result, baseline.result, one.run.read[name], unit)
    # The interval of a difference says more than that of a number whose examples differ much.
    shown = dataclasses.replace(value, low=None) if gain else value
    return f"{one.method}: {_bracketed(shown.text(unit), gain)}"


def _remarks(entry: Entry) -> list[str]:
    wrong = [
        f"{one.row}, {one.column}: printed {one.printed}, corrected {one.corrected}: {one.reason}."
        for one in entry.corrections
    ]
    return [*(f"The paper: {text}" for text in entry.says), *entry.remarks, *wrong]


def _named(column: Column) -> str:
    return f"{column.name} ({column.unit})"


def _with(cell: str, corrected: str | None) -> str:
    return cell if corrected is None else f"{cell}, corrected {corrected}"


def _bracketed(text: str, gain: str) -> str:
    return f"{text} ({gain})" if gain and text != ABSENT else text


def _examples(result: Result) -> str:
    count = result.data.examples
    return f"{count} example{'s' if count > 1 else ''}"


def _training(result: Result) -> str:
    """What the method of a result has learned."""
    if result.cost.train is not None:
        return f"{result.method}: {short_count(result.cost.train.tokens)} tokens"
    return f"{result.method}: {'untrained' if result.untrained else 'nothing to learn'}"


def _listed(texts: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(texts)) or ABSENT
