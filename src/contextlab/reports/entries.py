"""The rows of numbers of a table: a method on a task, with the runs of its seeds."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from contextlab.errors import UserError
from contextlab.grammar import MARK
from contextlab.harness import labels
from contextlab.harness.stored import Result
from contextlab.reports.captions import CONTROLS, NO_CONTROL
from contextlab.reports.dimensions import kind_of_device, latest
from contextlab.reports.names import Names

EVERY_SEED = "mean"


@dataclasses.dataclass(frozen=True)
class TableRow:
    """One row of numbers: a method on a task, with one result for every seed.

    Attributes:
        words: its name in every dimension.
        runs: the results, in the order of their seeds.
    """

    words: Mapping[str, str]
    runs: tuple[Result, ...]

    @property
    def first(self) -> Result:
        """The result that stands for what all seeds have in common."""
        return self.runs[0]

    @property
    def seeds(self) -> tuple[int, ...]:
        """The numbers of its seeds."""
        return tuple(run.provenance.seed for run in self.runs)

    @property
    def examples(self) -> tuple[Any, ...]:
        """Equal for entries on the same examples, whatever the method, on the same kind of device."""
        rest = tuple(word for name, word in self.words.items() if name not in ("method", "device"))
        return *rest, kind_of_device(self.first), self.first.data.examples


def entries(results: Sequence[Result], *, mean_seeds: bool) -> list[TableRow]:
    """The latest result of every run, with its names; of all seeds together where their mean is shown.

    Raises:
        UserError: for seeds of one method with different numbers of examples.
    """
    if not mean_seeds:
        return [TableRow(words, (result,)) for words, result in latest(results)]
    together: dict[tuple[tuple[str, str], ...], list[Result]] = defaultdict(list)
    for words, result in latest(results):
        together[tuple((words | {"seed": EVERY_SEED}).items())].append(result)
    rows = [TableRow(dict(words), tuple(sorted(runs, key=_seed))) for words, runs in together.items()]
    for entry in rows:
        counts = {run.provenance.seed: run.data.examples for run in entry.runs}
        if len(set(counts.values())) > 1:
            shown = ", ".join(f"{count} of seed {seed}" for seed, count in counts.items())
            raise UserError(
                f"{entry.words['method']} on {entry.words['task']} has different numbers of examples ({shown}): run "
                "them with the same --limit, or choose --seeds each."
            )
    return rows


class Controls:
    """The rows of the own context, and for each of them those of the same method with its controls.

    Args:
        of: the rows of all contexts.

    Raises:
        UserError: where no method was run with a control.
    """

    def __init__(self, of: Sequence[TableRow]) -> None:
        self._by_words = {frozenset(entry.words.items()): entry for entry in of}
        self.own = [entry for entry in of if entry.words["context"] == "own"]
        if not any(map(self.of, self.own)):
            raise UserError(NO_CONTROL)

    def of(self, entry: TableRow) -> dict[str, TableRow]:
        """The rows of a method's controls by their names."""
        keys = {control: frozenset({**entry.words, "context": control}.items()) for control in CONTROLS}
        return {control: self._by_words[key] for control, key in keys.items() if key in self._by_words}


def peers(of: Iterable[TableRow], wanted: Sequence[str] = ()) -> dict[tuple[Any, ...], dict[str, TableRow]]:
    """For every set of examples the entries by name, and by other names that only one of them has.

    Args:
        of: the entries.
        wanted: names that must not stand for several entries with the same examples.

    Raises:
        UserError: where one does, with the names of these entries.
    """
    groups: dict[tuple[Any, ...], dict[str, TableRow]] = defaultdict(dict)
    for entry in of:
        groups[entry.examples][entry.words["method"]] = entry
    return {examples: _named(group, wanted) for examples, group in groups.items()}


def _named(group: Mapping[str, TableRow], wanted: Sequence[str]) -> dict[str, TableRow]:
    """Entries by their names, and by other names that only one of them has; see `peers`."""
    others = _by_other_names(group)
    for name in wanted:
        if name not in group and len(rows := others.get(name, [])) > 1:
            several = ", ".join(row.words["method"] for row in rows)
            raise UserError(f"{name} stands for several methods here: name one of {several}.")
    return {name: rows[0] for name, rows in others.items() if len(rows) == 1} | dict(group)


def _by_other_names(group: Mapping[str, TableRow]) -> dict[str, list[TableRow]]:
    """Entries by their names without the mark; else by their settings; else by the method alone."""
    kinds: list[dict[str, list[TableRow]]] = [defaultdict(list) for _ in range(3)]
    for name, entry in group.items():
        method, settings = other_names(entry)
        for entries_of, other in zip(kinds, (unmarked(name), settings, method), strict=True):
            entries_of[other].append(entry)
    return kinds[2] | kinds[1] | kinds[0]


def other_names(entry: TableRow) -> tuple[str, str]:
    """The method's name, and its settings where it has the name of its weights."""
    return entry.first.method, labels.by_settings(entry.first)


def unmarked(name: str) -> str:
    """The name of a method without the mark that says whether it was trained."""
    return re.sub(f" {MARK.pattern}$", "", name)


def of_common_seeds(*of: TableRow) -> list[tuple[Result, ...]]:
    """The runs of several entries by the number of their seed, for every seed that all have; empty without any."""
    by_seed = [{run.provenance.seed: run for run in entry.runs} for entry in of]
    common = sorted(set[int].intersection(*(set(runs) for runs in by_seed)))
    return [tuple(runs[seed] for runs in by_seed) for seed in common]


def usual_seeds(of: Sequence[TableRow]) -> str:
    """The seeds that means are over, for a caption; some methods may lack some (`missing_seeds`)."""
    return f"mean ± standard deviation over {_spelled(_usual(of))}"


def missing_seeds(of: Sequence[TableRow], names: Names, *, paired: bool) -> Iterator[str]:
    """A sentence on methods that have other seeds than most; nothing where all have the same.

    Args:
        of: the entries of a table.
        names: for display.
        paired: whether the table has numbers of two methods.
    """
    usual = _usual(of)
    tasks = len({entry.words["task"] for entry in of}) > 1
    others = [
        f"{names.of('method', entry.words['method'])}{' on ' + entry.words['task'] if tasks else ''} "
        f"{'has' if len(entry.seeds) > 1 else 'has only'} {_spelled(entry.seeds)}"
        for entry in of
        if entry.seeds != usual
    ]
    if others:
        rule = "; differences and shares are over the seeds that both methods have" if paired else ""
        yield ", ".join(dict.fromkeys(others)) + rule


def _usual(of: Sequence[TableRow]) -> tuple[int, ...]:
    counts = Counter(entry.seeds for entry in of)
    return max(counts, key=lambda seeds: (len(seeds), counts[seeds]))


def _seed(result: Result) -> int:
    return result.provenance.seed


def _spelled(seeds: Sequence[int]) -> str:
    consecutive = list(seeds) == list(range(seeds[0], seeds[0] + len(seeds)))
    if len(seeds) > 3 and consecutive:
        return f"seeds {seeds[0]} to {seeds[-1]}"
    return f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}"
