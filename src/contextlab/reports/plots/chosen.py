"""The selection that a picture shows: runs on equal examples, their baseline, and the methods that are named."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pandas

from contextlab.errors import UserError, unknown
from contextlab.reports.filters import LeftOut, matching
from contextlab.reports.names import Names, titles
from contextlab.reports.plots.observed import Observation, baselines_of, measure_rows, observe, runs_of

MOST = 8
"""Series with a name; the others are grey."""
NONE = "none"
"""Instead of a baseline: the values themselves are drawn."""
USUAL = "window"
"""The method to which differences are drawn where none is named."""


@dataclasses.dataclass(frozen=True)
class PictureOptions:
    """Options of a user for a picture.

    Attributes:
        x: the cost, where the picture has one.
        metric: that is drawn; the measure of the task when None.
        baseline: method to which paired differences are drawn; the usual one when None, values for `none`.
        label: patterns of methods that have a name in the picture; the picture chooses when empty.
        names: display names.
        contexts: texts over which the cost of training is spread, where that is drawn.
    """

    x: Any = "flops"
    metric: str | None = None
    baseline: str | None = None
    label: Sequence[str] = ()
    names: Names = dataclasses.field(default_factory=Names)
    contexts: int = 1


@dataclasses.dataclass(frozen=True)
class Shown:
    """Rows of a frame as they are drawn.

    Attributes:
        observations: values, or differences to the baseline, without the baseline itself.
        labels: the name of every method, that of the baseline too; no two are equal.
        baseline: label of the baseline as in tables; None where values are drawn.
        baselines: its runs by task and metric.
        left_out: the runs that are not drawn.
    """

    observations: list[Observation]
    labels: Mapping[str, str]
    baseline: str | None
    baselines: Mapping[tuple[str, str], Any]
    left_out: LeftOut

    @property
    def against(self) -> str | None:
        """The name of the baseline."""
        return None if self.baseline is None else self.labels[self.baseline]


def shown(rows: pandas.DataFrame, options: PictureOptions, left_out: LeftOut) -> Shown:
    """The values of rows on equal examples, or their differences to the baseline.

    Args:
        rows: of the frame, of one metric or of its parts.
        options: what a user has chosen.
        left_out: the runs that are not in the frame.

    Raises:
        UserError: when there is no such baseline, or nothing to compare with it.
    """
    alike, left_out = equal_examples(rows, left_out)
    baseline = options.baseline
    chosen = None if baseline == NONE else baseline or usual_baseline(alike)
    baselines = baselines_of(alike, chosen) if chosen is not None else {}
    observations = observe(alike, baselines)
    if not observations and baseline is not None:
        raise UserError(f"No result shares examples with {chosen}: choose another --baseline.")
    if not observations:
        baselines, observations = {}, observe(alike, {})
    label = next(iter(baselines.values())).method if baselines else None
    run_ids = {observation.run.run for observation in observations} | {row.run for row in baselines.values()}
    apart = alike.loc[~alike["run"].isin(run_ids), "run"].nunique()
    labels = unique_titles((row.method for row in runs_of(alike)), options.names)
    named_baseline = "" if label is None else labels[label]
    return Shown(observations, labels, label, baselines, left_out.also(apart, f"without examples of {named_baseline}"))


def measured(frame: pandas.DataFrame, metric: str | None, left_out: LeftOut) -> tuple[pandas.DataFrame, LeftOut]:
    """A row for every run that has a metric, or the measure of its task, and the others as left out.

    Raises:
        UserError: for an unknown metric.
    """
    rows = measure_rows(frame, metric)
    return rows, left_out.also(frame["run"].nunique() - rows["run"].nunique(), f"without {metric}")


def equal_examples(rows: pandas.DataFrame, left_out: LeftOut) -> tuple[pandas.DataFrame, LeftOut]:
    """The runs of every task that were measured on equal examples, and the others as left out.

    Where runs have several sets of examples, those of the set with the most runs are kept, then of the larger set: a
    mean over three books is not beside one over twenty-two.
    """
    sets = [(str(row.task), str(row.data), int(row.examples)) for row in runs_of(rows)]
    counts = Counter(dict(zip(rows["run"], sets, strict=True)).values())
    best: dict[str, tuple[str, str, int]] = {}
    for data, count in counts.items():
        other = best.get(data[0])
        if other is None or (count, data[2]) > (counts[other], other[2]):
            best[data[0]] = data
    keeps = [best[data[0]] == data for data in sets]
    apart = rows.loc[[not keep for keep in keeps]].drop_duplicates("run")
    sizes = ", ".join(map(str, sorted(set(apart["examples"]))))
    return rows.loc[keeps], left_out.also(len(apart), f"on other examples (n = {sizes})")


def usual_baseline(rows: pandas.DataFrame) -> str | None:
    """`window`, or else the first method; None for a single method, which has nothing to be compared with."""
    methods = {str(row.method): str(row.name) for row in runs_of(rows)}
    if len(methods) < 2:
        return None
    exact = [method for method in methods if method == USUAL]
    return [*exact, *(method for method, name in methods.items() if name == USUAL), *methods][0]


def unique_titles(methods: Iterable[str], names: Names) -> dict[str, str]:
    """The display name of every method, with its label where several would have the same."""
    short = titles(methods, names)
    texts = list(short.values())
    return {label: text if texts.count(text) == 1 else f"{text} [{label}]" for label, text in short.items()}


def named(
    ranked: Sequence[tuple[str, str]], options: PictureOptions, first: Sequence[str] = (), most: int = MOST
) -> list[str]:
    """Labels of the methods that have a name in a picture.

    Args:
        ranked: label and registered name of all of them, the best first.
        options: whose patterns are obeyed where there are any.
        first: labels that come before all others.
        most: names where nothing is asked for: the first ones, then the best of every method, then the others.

    Raises:
        UserError: when a pattern fits no method.
    """
    labels = [label for label, _ in ranked]
    if options.label:
        return list(dict.fromkeys(method for pattern in options.label for method in _fitting(pattern, ranked)))
    best = {name: label for label, name in reversed(ranked)}
    of_each = [label for label, name in ranked if best[name] == label]
    return list(dict.fromkeys([*first, *of_each, *labels]))[:most]


def _fitting(pattern: str, ranked: Sequence[tuple[str, str]]) -> list[str]:
    labels = [label for label, _ in ranked]
    fits = matching(pattern, labels, [name for _, name in ranked])
    if not any(fits):
        raise unknown("method in this picture", pattern, labels)
    return [label for label, fit in zip(labels, fits, strict=True) if fit]


def ranked(values: Mapping[str, tuple[str, float]], higher: bool | None) -> list[tuple[str, str]]:
    """Labels and registered names of methods, the best first; in their order where no direction is known.

    Args:
        values: registered name and value by label.
        higher: whether higher is better.
    """
    if higher is None:
        return [(label, name) for label, (name, _) in values.items()]
    sign: Callable[[float], float] = (lambda value: -value) if higher else (lambda value: value)
    return [(label, values[label][0]) for label in sorted(values, key=lambda label: sign(values[label][1]))]
