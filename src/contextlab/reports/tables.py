"""Comparison tables of stored results."""

from __future__ import annotations

import dataclasses
import functools
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from contextlab.errors import UserError, check_known
from contextlab.harness import labels
from contextlab.harness.stored import Result
from contextlab.reports import captions, costs
from contextlab.reports.alike import mixtures, of_weights, with_mixtures
from contextlab.reports.cells import Cell, Column, Table, sorted_by, with_mean_over_tasks
from contextlab.reports.dimensions import DIMENSIONS, kind_of_device, learned
from contextlab.reports.entries import (
    Controls,
    TableRow,
    entries,
    missing_seeds,
    of_common_seeds,
    other_names,
    peers,
    unmarked,
    usual_seeds,
)
from contextlab.reports.equal_bytes import EqualBytes, is_pattern
from contextlab.reports.layout import ENDS, SHARE, TableLayout
from contextlab.reports.significance import NATS, PartsOf, marks, share, tested, tested_as
from contextlab.reports.stored import gc_paused


@gc_paused()
def comparison(results: Sequence[Result], layout: TableLayout | None = None) -> Table:
    """One table of many results, in the order in which they were started, equal rows together.

    When a run is stored several times, the latest result is used. Differences to a baseline are paired, over the same
    examples and with an interval, for the task's measure and for nats per token, whose values then have none; of other
    metrics they are the difference of the values. Of several seeds, differences and shares are over those that both
    methods have. The caption names what the results do not have in common (`alike.mixtures`).
    `share` is (window - method) / (window - full) in nats per token, where both, or the layout's twins in their place,
    were run on the same examples, the interval of window - full is above 0, and all three have learned from text or
    none has. Beside twins that have learned, methods that have not keep `window` and `full`. It is left out where only
    the two ends have it.

    Args:
        results: from `reports.stored.summaries` or `Results.runs`; the parts of their examples are read where needed.
        layout: what the table shows.

    Raises:
        UserError: for an unknown dimension, baseline, metric or cost.
    """
    return _Builder(results, layout or TableLayout()).table()


class _Builder:
    """Makes a table: entries, then columns, then cells."""

    def __init__(self, results: Sequence[Result], layout: TableLayout) -> None:
        layout.check({name for result in results for name in result.metrics})
        self.layout, self.names = layout, layout.names
        self.sources = entries(results, mean_seeds=layout.mean_seeds)
        self.controls = Controls(self.sources) if layout.controls else None
        self.entries = self.controls.own if self.controls is not None else self.sources
        marked = {entry.words["method"] for entry in self.entries}
        methods = marked | set(map(unmarked, marked)) | {name for entry in self.entries for name in other_names(entry)}
        patterns = [name for name in layout.baselines if is_pattern(name) and name not in methods]
        if len(patterns) > 1:
            raise UserError(f"{' and '.join(patterns)} are patterns of baselines: give one of them, beside names.")
        check_known("method in these results", [name for name in layout.baselines if name not in patterns], methods)
        twins = layout.ends if layout.ends != ENDS else ()
        check_known("method in these results", twins, methods)
        self.peers = peers(self.entries, [*layout.baselines, *twins])
        self._check_twins()
        self.parts_of = PartsOf()
        self.equal_bytes = EqualBytes(self.entries, patterns[0], self.parts_of, self.names) if patterns else None
        self.costs = costs.selected(layout.costs)
        self.differing = [name for name in DIMENSIONS if len({entry.words[name] for entry in self.entries}) > 1]
        self.keys = [
            *layout.rows,
            *(name for name in self.differing if name not in (*layout.rows, *layout.columns)),
        ]
        self.machines = {kind_of_device(entry.first) for entry in self.entries}

    def table(self) -> Table:
        rows: dict[tuple[str, ...], dict[Column, tuple[Cell, TableRow]]] = {}
        columns: dict[str, dict[Column, None]] = defaultdict(dict)
        for entry in self.entries:
            row = rows.setdefault(tuple(entry.words[name] for name in self.keys), {})
            for column, cell in self._cells(entry):
                row[column] = (cell, entry)
                columns[column.group].setdefault(column)
        order = [column for group in columns for column in self._in_order(group, columns[group])]
        labels = _together(list(rows))
        cells = {
            (n, m): rows[label][column][0]
            for n, label in enumerate(labels)
            for m, column in enumerate(order)
            if column in rows[label]
        }
        if self.layout.marks:
            for m, column in enumerate(order):
                of_column = {n: rows[label][column] for n, label in enumerate(labels) if column in rows[label]}
                cells |= {(n, m): cell for n, cell in self._marked(column, of_column).items()}
        shown = tuple(
            tuple(self.names.of(key, word) for key, word in zip(self.keys, label, strict=True)) for label in labels
        )
        noisy = any(cell.disturbed for cell in cells.values())
        table = Table(
            tuple(self.keys),
            shown,
            tuple(order),
            cells,
            self._sentences(cells.values()),
            tuple(self._legend(order, noisy=noisy)),
            notes=tuple(captions.notes(self._shown, order, self.differing, self.names, noisy=noisy)),
        )
        runs = [run for entry in self.sources for run in entry.runs]
        table = with_mixtures(table, mixtures(runs, DIMENSIONS, self.names))
        table = dataclasses.replace(table, notes=(*table.notes, *of_weights(runs, self.names)))
        if self.layout.mean_tasks:
            table = with_mean_over_tasks(table, self.layout.columns)
        return sorted_by(table, self.layout.sort)

    def _check_twins(self) -> None:
        """Refuse ends of the share of which one has learned from text and the other has not."""
        for group in self.peers.values():
            ends = [group[name] for name in self.layout.ends if name in group]
            if self.layout.ends != ENDS and len({learned(end.first) for end in ends}) > 1:
                named = " and ".join(self.layout.ends)
                raise UserError(f"Only one of the twins {named} has learned: name two that were trained alike.")

    def _group(self, entry: TableRow) -> str:
        names = [name for name in self.layout.columns if name in self.differing and name not in self.layout.rows]
        return ", ".join(self.names.of(name, entry.words[name]) for name in names)

    def _cells(self, entry: TableRow) -> Iterator[tuple[Column, Cell]]:
        group = self._group(entry)
        if not self._equal_n:
            yield Column(group, "n", "count", "n"), Cell(entry.first.data.scored)
        yield from self._qualities(entry, group)
        values = [costs.numbers(run) for run in entry.runs]
        for cost in self.costs:
            suffix = kind_of_device(entry.first) if cost.measured and len(self.machines) > 1 else ""
            if all(cost.name in numbers for numbers in values):
                yield cost.column(group, suffix), _mean([numbers[cost.name] for numbers in values])
        if self.layout.legacy:
            for cost in costs.LEGACY:
                yield cost.column(group), costs.legacy_numbers(entry.first)[cost.name]

    def _qualities(self, entry: TableRow, group: str) -> Iterator[tuple[Column, Cell]]:
        others = self._others(entry)
        available = [name for name in entry.first.metrics if all(name in run.metrics for run in entry.runs)]
        for name in self.layout.chosen([entry.first.measure.name], available):
            measure = tested_as(entry.first, name)
            compared = measure is not None and measure.higher_is_better is not None
            column = Column(group, name, "metric", self.names.metric(name), "", compared)
            differences = dict(self._differences(entry, others, name))
            # The interval that matters is that of the paired difference; that of the value is much wider.
            value = _metric(entry, name)
            paired = entry in others.values() or any(cell.low is not None for cell in differences.values())
            yield column, dataclasses.replace(value, low=None, high=None) if paired else value
            for label, difference in differences.items():
                title = f"{self.names.metric(name)} - {label}"
                yield Column(group, f"{name} - {label}", "difference", title), difference
            if self.equal_bytes is not None:
                yield from self.equal_bytes.columns(entry, name, group)
        if self.layout.shows_share and entry.examples in self._shared and (cell := self._shares[id(entry)]) is not None:
            yield Column(group, SHARE, "share", SHARE), cell

    def _others(self, entry: TableRow) -> dict[str, TableRow]:
        """What is subtracted from a row, the baselines and its controls, by their names."""
        baselines = {name: self._baseline(entry, name) for name in self.layout.baselines}
        others = {self._shown_as(name, row): row for name, row in baselines.items() if row is not None}
        return others if self.controls is None else others | self.controls.of(entry)

    def _shown_as(self, name: str, row: TableRow) -> str:
        """The name of a baseline in headings: its row's where the method was named without its settings."""
        label = row.words["method"]
        short = name == row.first.method and name != unmarked(label)
        return self.names.of("method", label if short else name)

    def _baseline(self, entry: TableRow, name: str) -> TableRow | None:
        if self.equal_bytes is not None and name == self.equal_bytes.pattern:
            return self.equal_bytes.baseline(entry)
        return self.peers[entry.examples].get(name)

    def _differences(self, entry: TableRow, others: Mapping[str, TableRow], name: str) -> Iterator[tuple[str, Cell]]:
        """What a metric is beyond those of others, by their names."""
        for label, other in others.items():
            difference = self._difference(entry, other, name)
            if difference is not None:
                yield label, difference

    def _difference(self, entry: TableRow, baseline: TableRow, name: str) -> Cell | None:
        """The difference over the seeds that both have; None without any, or where the baseline lacks the metric."""
        mine, other = ([runs[n] for runs in of_common_seeds(entry, baseline)] for n in range(2))
        if not mine or not all(name in run.metrics for run in other):
            return None
        measure = tested_as(entry.first, name)
        if measure is not None and entry is not baseline:
            both = tested(measure, mine, other, self.parts_of)
            if both is not None:
                return Cell(both.metric.value, both.metric.low, both.metric.high)
        mean, of_other = (statistics.fmean(run.metrics[name].value for run in runs) for runs in (mine, other))
        return Cell(mean - of_other)

    def _share(self, entry: TableRow) -> Cell | None:
        """The share over the seeds that all three have; None where one of them has none."""
        names = self._ends(entry)
        if names is None:
            return None
        window, full = (self.peers[entry.examples][name] for name in names)
        shares = [share(low, own, high, self.parts_of) for low, own, high in of_common_seeds(window, entry, full)]
        cells = [cell for cell in shares if cell is not None]
        if not cells or len(cells) < len(shares):
            return None
        return _mean([Cell(cell.value, cell.low, cell.high) for cell in cells])

    def _ends(self, entry: TableRow) -> tuple[str, str] | None:
        """The methods whose shares are 0 and 1, which have learned if the entry has; unnamed ones never have."""
        of_examples = self.peers[entry.examples]
        for names in self._pairs:
            rows = [of_examples[name] for name in names if name in of_examples]
            alike = all(learned(row.first) == learned(entry.first) for row in rows)
            if len(rows) == len(names) and alike and not (names == ENDS and learned(entry.first)):
                return names
        return None

    @functools.cached_property
    def _pairs(self) -> tuple[tuple[str, str], ...]:
        """The layout's twins; beside them, where they have learned, the ends of what has not."""
        twins = [group[name] for group in self.peers.values() for name in self.layout.ends if name in group]
        return (self.layout.ends, ENDS) if any(learned(twin.first) for twin in twins) else (self.layout.ends,)

    def _why_no_share(self) -> str:
        """Why no column has a share."""
        names = self.layout.ends
        low, high = (self.names.of("method", name) for name in names)
        pairs = [[group[name] for name in names] for group in self.peers.values() if set(names) <= group.keys()]
        ends = [end for pair in pairs if of_common_seeds(*pair) for end in pair]
        if not self.layout.shows_share:
            return "--metric does not name it"
        if not ends:
            return f"{low} or {high} is missing, or was run on other examples"
        if not any(NATS in end.first.metrics for end in ends):
            return "these runs have no nats per token"
        if names == ENDS and any(learned(end.first) for end in ends):
            return f"{low} or {high} has learned: name two that were trained alike with --twins"
        if any(cell is not None for cell in self._shares.values()):
            return f"only {low} and {high} have one"
        return f"{high} has no certain gain over {low} here"

    def _marked(self, column: Column, of_column: Mapping[int, tuple[Cell, TableRow]]) -> dict[int, Cell]:
        """The best and second best cells of a column with their marks, where all are of the same examples and seeds."""
        of = [entry for _, entry in of_column.values()]
        if not column.compared or len({(entry.examples, entry.seeds) for entry in of}) != 1:
            return {}
        measure = tested_as(of[0].first, column.name)
        if measure is None or measure.higher_is_better is None:
            return {}

        def pvalue(first: int, other: int) -> float | None:
            both = tested(measure, of[first].runs, of[other].runs, self.parts_of)
            return both.pvalue if both is not None else None

        values = [cell.value for cell, _ in of_column.values()]
        marked = marks(values, higher=measure.higher_is_better, pvalue=pvalue)
        rows = list(of_column)
        return {rows[n]: dataclasses.replace(of_column[rows[n]][0], mark=mark) for n, mark in marked.items()}

    @functools.cached_property
    def _shared(self) -> set[tuple[Any, ...]]:
        """The examples on which another method than the two ends has a share."""
        return {
            entry.examples
            for entry in self.entries
            if self._shares[id(entry)] is not None
            and all(self.peers[entry.examples][name] is not entry for name in self._ends(entry) or ())
        }

    @functools.cached_property
    def _shares(self) -> dict[int, Cell | None]:
        """The share of every entry, by its identity."""
        return {id(entry): self._share(entry) for entry in self.entries}

    @functools.cached_property
    def _equal_n(self) -> bool:
        """Whether all results of a task have equally many examples, so that the caption can say how many."""
        return len(self._counts) == len({task for task, _ in self._counts})

    @functools.cached_property
    def _counts(self) -> dict[tuple[str, int], None]:
        return dict.fromkeys((entry.words["task"], entry.first.data.scored) for entry in self.entries)

    def _in_order(self, group: str, columns: Iterable[Column]) -> list[Column]:
        """The columns of a group: n, metrics in the order of the layout, the share, costs as in the catalogue."""
        named = self.layout.metrics if "all" not in self.layout.metrics else ()
        position = {name: n for n, name in enumerate(named)}
        catalogue = {cost.name: n for n, cost in enumerate((*costs.CATALOGUE, *costs.LEGACY))}
        kinds = ("count", "metric", "share", "cost")

        def key(column: Column) -> tuple[int, int]:
            kind = "metric" if column.kind in ("difference", "text") else column.kind
            if kind == "cost":
                return kinds.index(kind), next(n for name, n in catalogue.items() if column.name.startswith(name))
            return kinds.index(kind), position.get(column.name.split(" - ")[0], len(position))

        return sorted(columns, key=key)

    def _sentences(self, cells: Iterable[Cell]) -> tuple[str, ...]:
        """Sentences on the data and the numbers."""
        counts = _examples(self._counts, self.names) if self._equal_n else ""
        baselines = dict.fromkeys(
            self._shown_as(name, row)
            for name in self.layout.baselines
            for entry in self.entries
            if (row := self._baseline(entry, name)) is not None
        )
        seeds = usual_seeds(self.entries) if self.layout.mean_seeds else ""
        bounded = any(cell.low is not None for cell in cells)
        subtracted = [*baselines, *(["the controls"] if self.layout.controls else [])]
        numbers = captions.numbers(subtracted, seeds, intervals=bounded)
        first = captions.about(self._shown, counts, self.differing, self.names)
        return tuple(filter(None, (first, captions.skipped(entry.first for entry in self.entries), numbers)))

    def _legend(self, columns: Sequence[Column], *, noisy: bool) -> Iterator[str]:
        """The meaning of headings and signs."""
        if self.layout.baselines or self.layout.controls:
            yield from captions.directions([entry.first for entry in self.entries], self.names)
        if self.equal_bytes is not None:
            yield self.equal_bytes.legend
        yield from captions.own_windows(self._shown, self.names)
        if self.layout.mean_seeds:
            paired = any(column.kind in ("difference", "share") for column in columns)
            yield from missing_seeds(self.entries, self.names, paired=paired)
        of_shares = {self._ends(entry) for entry in self.entries if self._shares[id(entry)] is not None}
        ends = [names for names in dict.fromkeys(self._pairs) if names in of_shares]
        yield from captions.legend(columns, ends, self.names, noisy=noisy)
        if self.layout.names_share and not any(column.kind == "share" for column in columns):
            yield f"No share: {self._why_no_share()}"
        yield from captions.unequal_timing(self._shown, columns, self.names)
        methods = ((self.names.of("method", entry.words["method"]), entry.first) for entry in self.entries)
        yield from dict.fromkeys(line for label, result in methods if (line := labels.legend(label, result)))

    @property
    def _shown(self) -> list[tuple[Result, dict[str, str]]]:
        return [(run, dict(entry.words)) for entry in self.entries for run in entry.runs]


def _metric(entry: TableRow, name: str) -> Cell:
    metrics = [run.metrics[name] for run in entry.runs]
    return _mean([Cell(metric.value, metric.low, metric.high) for metric in metrics])


def _mean(cells: Sequence[Cell]) -> Cell:
    """The mean over seeds with its standard deviation; the cell itself for one seed."""
    if len(cells) == 1:
        return cells[0]
    values = [cell.value for cell in cells]
    noisy = any(cell.disturbed for cell in cells)
    return Cell(statistics.fmean(values), deviation=statistics.stdev(values), disturbed=noisy)


def _together(labels: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Labels with the same first part next to each other."""
    groups = {name: number for number, name in enumerate(dict.fromkeys(label[0] for label in labels))}
    return sorted(labels, key=lambda label: groups[label[0]])


def _examples(counts: Iterable[tuple[str, int]], names: Any) -> str:
    """How many examples the tasks have."""
    by_count: dict[int, list[str]] = defaultdict(list)
    for task, count in counts:
        by_count[count].append(names.of("task", task))
    if len(by_count) == 1:
        only = next(iter(by_count))
        return f"n = {only} example{'s' if only != 1 else ''}"
    most = max(by_count, key=lambda count: len(by_count[count]))
    rest = [f"{task} {count}" for count, tasks in by_count.items() if count != most for task in tasks]
    return f"n = {most} examples ({', '.join(rest)})"
