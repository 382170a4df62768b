"""The effective length of a method: the longest tested length at which it keeps most of its score.

NoLiMa (arXiv:2502.05167) compares with the method's own score at short lengths, the base; RULER (arXiv:2404.06654)
with one score for all methods.

Legend: D draws, L lengths.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from contextlab import grammar
from contextlab.benchmarks.metrics import bootstrap
from contextlab.benchmarks.metrics.intervals import Array
from contextlab.benchmarks.task import Part
from contextlab.errors import UserError
from contextlab.harness.store import lines
from contextlab.harness.stored import Result
from contextlab.reports.dimensions import latest
from contextlab.reports.filters import LeftOut
from contextlab.reports.stored import parts_of

SHARE, HALF = 0.85, 0.5
"""Of the base: the threshold of an effective length, and that below which a score is marked (NoLiMa, section 4)."""
ROUNDING = 1e-9
"""Scores that are smaller than the threshold by less are equal to it."""
NAMED = re.compile(r"(128|256|512)|(\d+)(k|M)")
"""A length in the name of a split. Other numbers without a unit may count something else, as demonstrations."""
UNITS = {"k": 2**10, "M": 2**20}


def length_of(run: Result) -> int:
    """The tokens that a run reads of a text: the least of its settings `tokens` and `history` and its split's length.

    Raises:
        UserError: where none of them is there.
    """
    length = _length_of(run)
    if length is None:
        raise UserError(
            f"{run.run_id} has no length, neither as tokens or history nor in its split {run.split}: leave it out with "
            "--where."
        )
    return length


def name_of(tokens: int) -> str:
    """A length as splits name it: `512` or `4k`."""
    return f"{tokens // 1024}k" if tokens % 1024 == 0 else f"{tokens:,}"


@dataclasses.dataclass(frozen=True)
class LengthRow:
    """One method on one task, with a run for every length.

    Attributes:
        words: its name in every dimension; that of its task is without the length.
        runs: by length, the shortest first.
    """

    words: Mapping[str, str]
    runs: Mapping[int, Result]

    @property
    def lengths(self) -> tuple[int, ...]:
        """The tested lengths."""
        return tuple(self.runs)

    @property
    def first(self) -> Result:
        """The run at the shortest length."""
        return next(iter(self.runs.values()))

    @property
    def last(self) -> Result:
        """The run at the longest length."""
        return self.runs[self.lengths[-1]]

    @property
    def scores(self) -> dict[int, float]:
        """The measure of the task by length."""
        return {length: run.metrics[run.measure.name].value for length, run in self.runs.items()}

    @property
    def base(self) -> float:
        """The score at the shortest length."""
        return self.scores[self.lengths[0]]

    @functools.cached_property
    def draws(self) -> Array | None:
        """Scores in draws of the clusters, one column per length; None where a run has one cluster, or no parts stored.

        Raises:
            UserError: when a stored line is broken.
        """
        return bootstrap.draws(self._parts) if self.clusters > 1 else None

    @property
    def clusters(self) -> int:
        """The fewest clusters of a run; 0 where one has no parts stored."""
        return min(len({part.cluster for part in parts}) for parts in self._parts)

    @functools.cached_property
    def _parts(self) -> list[list[Part]]:
        return [_parts(run) for run in self.runs.values()]

    def halved(self, length: int) -> bool:
        """Whether the score at a length is below half of the base."""
        return self.scores[length] < HALF * self.base - ROUNDING

    def effective(self, threshold: float | None = None) -> EffectiveLength | None:
        """The effective length with its interval; None where it would be a share of a base of 0.

        Args:
            threshold: the least score that is enough; `SHARE` of the base when None.
        """
        if threshold is None and self.base <= 0:
            return None
        scores = np.array([list(self.scores.values())])
        place = int(places(scores, threshold)[0])
        passed = passes(scores, threshold)[0]
        missed = tuple(length for length, enough in zip(self.lengths[: place + 1], passed, strict=False) if not enough)
        if self.draws is None:
            return EffectiveLength(self.lengths, place, None, missed)
        low, high = bootstrap.central(places(self.draws, threshold))
        return EffectiveLength(self.lengths, place, (int(low), int(high)), missed)


@dataclasses.dataclass(frozen=True)
class EffectiveLength:
    """The effective length of a method.

    Attributes:
        lengths: that were tested, the shortest first.
        place: of the effective length among them; -1 where no length passes.
        interval: the ends of its 95 % interval, as places; None without one.
        missed: lengths below it that do not pass.
    """

    lengths: tuple[int, ...]
    place: int
    interval: tuple[int, int] | None
    missed: tuple[int, ...]

    def __str__(self) -> str:
        value = self.named(self.place)
        return value if self.interval is None else f"{value} [{', '.join(map(self.named, self.interval))}]"

    def named(self, place: int) -> str:
        """A place as a length, `<512` before the first, and `>=8k` for the last, beyond which nothing was tested."""
        if place < 0:
            return f"<{name_of(self.lengths[0])}"
        return f"{'>=' if place == len(self.lengths) - 1 else ''}{name_of(self.lengths[place])}"

    def tokens(self, place: int) -> int | None:
        """A place as a number of tokens; None before the first."""
        return None if place < 0 else self.lengths[place]


def passes(scores_DL: Array, threshold: float | None = None) -> Array:
    """Whether scores reach the threshold, which is a share of the first score of each row when None."""
    least = SHARE * scores_DL[:, :1] if threshold is None else threshold
    enough: Array = scores_DL >= least - ROUNDING
    return enough


def places(scores_DL: Array, threshold: float | None = None) -> Array:
    """The place of the last score of each row that passes; -1 where none does."""
    passed_DL = passes(scores_DL, threshold)
    last_D = passed_DL.shape[1] - 1 - passed_DL[:, ::-1].argmax(1)
    return np.where(passed_DL.any(1), last_D, -1)


def of_tasks(results: Sequence[Result], left_out: LeftOut | None = None) -> tuple[dict[str, list[LengthRow]], LeftOut]:
    """The rows of every task with several lengths, and the runs that have no place in one.

    Args:
        results: from `reports.stored.summaries`.
        left_out: stored runs that are not among the results.

    Raises:
        UserError: when no method has several lengths of a measure between 0 and 1 that is better when higher, or two
            runs of one method have the same length.
    """
    shown = latest(results)
    scored = [(words, run) for words, run in shown if _scored(run)]
    if not scored:
        raise UserError(
            f"{shown[0][1].measure.name} has no effective length, which is a share of a score: choose runs of a task "
            "whose measure lies between 0 and 1 and is better when higher."
        )
    sized = [(words, run) for words, run in scored if _length_of(run) is not None]
    length_of((sized or scored)[0][1])
    rows = _rows(sized)
    several = [row for row in rows if len(row.runs) > 1]
    if not several:
        raise UserError(
            f"{rows[0].words['method']} has only the length {name_of(rows[0].lengths[0])} of {rows[0].words['task']}: "
            "run it at several lengths."
        )
    without = left_out or LeftOut(len(shown))
    without = without.also(len(shown) - len(scored), "of a measure without an effective length")
    without = without.also(len(scored) - len(sized), "without a length")
    without = without.also(len(rows) - len(several), "at the only length of a method")
    tasks: dict[str, list[LengthRow]] = {}
    for row in several:
        tasks.setdefault(row.words["task"], []).append(row)
    return tasks, without


def chance_of(run: Result) -> float | None:
    """The accuracy of guessing, where every stored question is a choice among options; None otherwise.

    Raises:
        UserError: when a stored line is broken.
    """
    if run.folder is None or run.measure.name != "accuracy":
        return None
    records = [line.record for line in lines(run.folder, run.data.examples) if line.quality is not None]
    counts = [_options(question) for record in records for question in _questions(record)]
    return statistics.fmean(1 / count for count in counts) if counts and all(counts) else None


def _questions(record: Mapping[str, Any]) -> list[Any]:
    """The questions of an example, which is one itself where it has no list of them."""
    questions = record.get("questions", [record])
    return questions if isinstance(questions, list) else []


def _options(question: Any) -> int:
    """How many options a question has; 0 where it is no choice."""
    nats = question.get("nats") if isinstance(question, dict) else None
    return len(nats) if isinstance(nats, list) else 0


def _scored(run: Result) -> bool:
    """Whether the measure of a run can have a share: numbers between 0 and 1 of which higher ones are better."""
    return run.measure.bounded and bool(run.measure.higher_is_better) and run.measure.name in run.metrics


def _rows(runs: Sequence[tuple[Mapping[str, str], Result]]) -> list[LengthRow]:
    groups: dict[tuple[str, ...], tuple[dict[str, str], dict[int, Result]]] = {}
    for words, run in runs:
        of_row, length = {**words, "task": _task_of(run)}, length_of(run)
        by_length = groups.setdefault(tuple(of_row.values()), (of_row, {}))[1]
        if length in by_length:
            raise UserError(
                f"{words['method']} has two runs of {of_row['task']} at the length {name_of(length)} "
                f"({by_length[length].run_id}, {run.run_id}): choose one with --where."
            )
        by_length[length] = run
    return [LengthRow(of_row, dict(sorted(by_length.items()))) for of_row, by_length in groups.values()]


def _length_of(run: Result) -> int | None:
    of_split = [length for part in _split(run).name.split("-") if (length := _named(part)) is not None]
    return min([length for length in (run.tokens, run.history, *of_split) if length is not None], default=None)


def _task_of(run: Result) -> str:
    """The task of a run without its lengths."""
    split = _split(run)
    rest = "-".join(part for part in split.name.split("-") if _named(part) is None)
    return grammar.spelled(run.task, rest or None, split.settings)


def _split(run: Result) -> grammar.NamedItem:
    try:
        return grammar.split(run.split)
    except UserError:  # stored by another program
        return grammar.NamedItem(run.split)


def _named(part: str) -> int | None:
    """The length that a part of a split's name stands for; None for another word."""
    match = NAMED.fullmatch(part)
    return match and (int(match[1]) if match[1] else int(match[2]) * UNITS[match[3]])


def _parts(run: Result) -> list[Part]:
    """The parts of a run in its measure; empty where an example has none."""
    examples = parts_of(run).values()
    if not all(run.measure.name in parts for parts in examples):
        return []
    return list(itertools.chain.from_iterable(parts[run.measure.name] for parts in examples))
