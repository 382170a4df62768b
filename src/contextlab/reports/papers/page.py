"""The published and the measured numbers of an entry in one table, with what differs between them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

from contextlab import grammar
from contextlab.cards import short_count
from contextlab.harness import labels
from contextlab.harness.stored import Result
from contextlab.reports.alike import mixtures, of_weights
from contextlab.reports.dimensions import once
from contextlab.reports.papers.measure import Measured
from contextlab.reports.papers.readings import gained, printed_change, reading
from contextlab.reports.papers.schema import ABSENT, Paper, PaperColumn, PaperEntry
from contextlab.reports.papers.sheet import Page, title

HEAD = ("", "paper", "here")
NOT_PRINTED = "not printed"
NOT_MEASURED = "not measured"


def comparison(paper: Paper, entry: PaperEntry, found: Sequence[Measured]) -> Page:
    """Published and measured numbers side by side, after what differs: model, data, size, training and machine."""
    results = [one.result for one in found if one.result is not None]
    tasks = dict.fromkeys(one.task for one in found)
    absent = [task for task in tasks if all(one.result is None for one in found if one.task == task)]
    facts = [
        ("model", paper.model.about, _listed(result.backbone for result in results)),
        ("data", entry.data, _listed(f"{labels.of_result(result)}: {result.data.note}" for result in results)),
        ("size", entry.size, _listed(f"{labels.of_result(result)}: {_examples(result)}" for result in results)),
        ("training", paper.model.trained, _listed(filter(None, map(_training, found)))),
        ("machine", "", _listed(result.provenance.device for result in results)),
    ]
    numbers = list(_numbers(entry, [one for one in found if one.task not in absent]))
    notes = [entry.about, *(entry.embedded.differs if entry.embedded else []), *_learned(found), *_remarks(entry)]
    notes += [f"Not measured: {', '.join(absent)}."] if absent else []
    notes += _mixtures(found)
    return Page(title(paper, entry), [HEAD, *facts, *numbers], notes)


def published(paper: Paper, entry: PaperEntry) -> Page:
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


def _numbers(entry: PaperEntry, found: Sequence[Measured]) -> Iterator[tuple[str, str, str]]:
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
                f"{one.row}: {_named(PaperColumn(name=name, unit=unit)) if unit else name}",
                _with(_bracketed(printed, gain), corrected.get((one.row, name))),
                _here(one, of_rows.get((above, name)), name, unit or name),
            )


def _here(one: Measured, baseline: Measured | None, name: str, unit: str) -> str:
    """A measured number, beside its baseline's or with its own interval."""
    value = None if one.result is None else reading(one.result, one.run.read[name], unit)
    if one.result is None or value is None:
        return NOT_MEASURED
    metric, gains = one.run.read[name], list[str]()
    if baseline is not None and baseline.result is not None:
        gains.append(gained(one.result, baseline.result, metric, unit))
        if one.twin is not None:
            gains.append(f"{gained(one.result, one.twin, metric, unit)} on its twin")
    gain = "; ".join(filter(None, gains))
    # The interval of a difference says more than that of a number whose examples differ much.
    shown = dataclasses.replace(value, low=None) if gain else value
    return f"{one.method}: {_bracketed(shown.text(unit), gain)}"


def _remarks(entry: PaperEntry) -> list[str]:
    wrong = [
        f"{one.row}, {one.column}: printed {one.printed}, corrected {one.corrected}: {one.reason}."
        for one in entry.corrections
    ]
    return [*(f"The paper: {text}" for text in entry.says), *entry.remarks, *wrong]


def _named(column: PaperColumn) -> str:
    return f"{column.name} ({column.unit})"


def _with(cell: str, corrected: str | None) -> str:
    return cell if corrected is None else f"{cell}, corrected {corrected}"


def _bracketed(text: str, gain: str) -> str:
    return f"{text} ({gain})" if gain and text != ABSENT else text


def _examples(result: Result) -> str:
    count = result.data.examples
    return f"{count} example{'s' if count > 1 else ''}"


def _training(one: Measured) -> str:
    """What the method of a run has learned; empty where nothing is stored."""
    if one.result is None:
        return ""
    if one.result.cost.train is not None:
        return f"{_unmarked(one.method)}: {short_count(one.result.cost.train.tokens)} tokens"
    if one.result.untrained:
        return f"{_unmarked(one.method)}: untrained"
    return f"{one.result.method}: nothing to learn"


def _learned(found: Sequence[Measured]) -> Iterator[str]:
    """What the results say of training: which methods have learned nothing, and what the twins of the others are."""
    untrained = dict.fromkeys(_unmarked(one.method) for one in found if one.result and one.result.untrained)
    if untrained:
        yield f"{', '.join(untrained)}: measured without any training."
    twins = dict.fromkeys(
        f"{_with_tokens(one.method, one.result)} has the twin {_with_tokens(labels.whole(one.twin), one.twin)}"
        for one in found
        if one.twin is not None
    )
    if twins:
        yield (
            "A twin has an update of the same size and no memory. As far as both have learned from as many tokens, "
            f"what is gained on it is the memory's: {'; '.join(twins)}."
        )


def _mixtures(found: Sequence[Measured]) -> Iterator[str]:
    """What the results of the column `here` and of its twins do not have in common, the device apart, which has its own
    row, and which of them have weights in more bits than now."""
    results = once(r for one in found for r in (one.result, one.twin) if r is not None)
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
