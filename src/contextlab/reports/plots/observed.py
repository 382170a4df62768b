"""The observations that are drawn: values with intervals, or paired differences to a baseline."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import pandas
import pydantic
from pydantic import Field, JsonValue

from contextlab.benchmarks.metrics.estimates import paired
from contextlab.benchmarks.task import Measure, Metric, Part
from contextlab.errors import UserError, unknown
from contextlab.harness.store import lines
from contextlab.harness.stored import ExampleLine, Number, StoredModel
from contextlab.reports.filters import matching
from contextlab.reports.names import PLAIN, Names
from contextlab.seals import first_fault

POSITION = re.compile(r"(?P<base>.+)_at_(?P<tokens>\d+)k")
REACH = re.compile(r"(?P<base>.+)_(?P<reach>512|\d+k)")  # other numbers are those of turns, or of a user's metric
LOWER = ("nats_per", "token_perplexity", "word_perplexity")
HIGHER = ("accuracy", "macro_f1", "exact_match", "f1", "rouge_l_recall", "share")
LABELS = {"f1": "F1", "macro_f1": "macro F1", "rouge_l_recall": "ROUGE-L recall"}
SHOWN = 4


@dataclasses.dataclass(frozen=True)
class Observation:
    """One metric of one run, as it is drawn."""

    run: Any
    value: float
    interval: tuple[float, float] | None


def check_one(frame: pandas.DataFrame, columns: Sequence[str], why: str) -> None:
    """Refuse results that differ in a column and would be one picture.

    Raises:
        UserError: when they do.
    """
    for column in columns:
        texts = sorted({str(value) for value in frame[column].dropna()})
        if len(texts) > 1:
            shown = ", ".join(texts[:SHOWN]) + (", ..." if len(texts) > SHOWN else "")
            raise UserError(f"{why} one {column}, and there are {shown}: choose with --where '{column}=...'.")


def measure_rows(frame: pandas.DataFrame, metric: str | None) -> pandas.DataFrame:
    """A row for every run: that of a metric, or of the measure of its task.

    Raises:
        UserError: for an unknown metric.
    """
    if metric is None:
        return frame[frame["measure"].astype(bool)]
    if metric not in set(frame["metric"]):
        raise unknown("metric", metric, set(frame["metric"]))
    return frame[frame["metric"] == metric]


def runs_of(rows: pandas.DataFrame) -> list[Any]:
    """Rows of the frame as objects whose attributes are its columns."""
    return list(rows.itertuples())


def observe(rows: pandas.DataFrame, baselines: Mapping[tuple[str, str], Any]) -> list[Observation]:
    """The values of rows, or where there are baselines their paired differences to those of their task and metric.

    Runs that share no examples with their baseline have no difference and are left out.

    Args:
        rows: of the frame.
        baselines: runs by task and metric, from `baselines_of`; empty for values.
    """
    stored = runs_of(rows)
    if not baselines:
        return [Observation(row, row.value, _interval(row.low, row.high)) for row in stored]
    differences = ((row, _paired(row, baselines.get((row.task, row.metric)))) for row in stored)
    return [
        Observation(row, metric.value, _interval(metric.low, metric.high))
        for row, metric in differences
        if metric is not None
    ]


def baselines_of(rows: pandas.DataFrame, baseline: str) -> dict[tuple[str, str], Any]:
    """The runs of a baseline by task and metric.

    Raises:
        UserError: when there is no such method, or several runs of it for a task.
    """
    stored = runs_of(rows)
    fits = matching(baseline, [row.method for row in stored], [row.name for row in stored])
    if not any(fits):
        raise unknown("method in these results", baseline, {row.method for row in stored})
    runs: dict[tuple[str, str], Any] = {}
    for row, fit in zip(stored, fits, strict=True):
        if fit and (row.task, row.metric) in runs:
            raise UserError(f"There are several results of {baseline} for {row.task}: name one as in a table.")
        if fit:
            runs[row.task, row.metric] = row
    return runs


def difference(row: Any, other: Any) -> Metric | None:
    """The metric of one row minus that of another, over the examples that both runs store; None without any."""
    bounded = bool(row.bounded) if row.measure else row.metric.startswith(HIGHER)
    own, others = (_parts_of(run.folder, run.examples, row.metric) for run in (row, other))
    return paired(Measure(row.metric, None, bounded), own, others)


def example_values(row: Any) -> dict[str, float]:
    """The metric of every example of a run: the mean over its questions, tokens or texts."""
    parts = _parts_of(row.folder, row.examples, row.metric)
    return {
        name: sum(p.numerator for p in of_example) / sum(p.denominator for p in of_example)
        for name, of_example in parts.items()
    }


def higher_is_better(frame: pandas.DataFrame, metric: str) -> bool | None:
    """The direction of a metric: as its task says, or by its name; None where it is unknown."""
    directions = set(frame.loc[frame["metric"] == metric, "direction"]) - {""}
    if len(directions) == 1:
        return directions == {"higher"}
    return True if metric.startswith(HIGHER) else False if metric.startswith(LOWER) else None


def metric_label(metric: str, higher: bool | None, baseline: str | None = None, names: Names = PLAIN) -> str:
    """The words of an axis; a baseline has the name under which it is shown."""
    chosen = names.of("metric", metric)
    words = chosen if chosen != metric else LABELS.get(metric, metric.replace("_", " "))
    minus = f" \N{MINUS SIGN} {baseline}" if baseline else ""
    better = {True: " (higher is better)", False: " (lower is better)", None: ""}[higher]
    return f"{words}{minus}{better}"


def _paired(row: Any, other: Any | None) -> Metric | None:
    return None if other is None or row.run == other.run else difference(row, other)


def clusters_of(row: Any) -> tuple[int, str]:
    """How many independent clusters a run's metric has, and what they are; 0 where its examples are not stored."""
    if not isinstance(row.folder, str):
        return 0, ""
    parts = _parts_of(row.folder, row.examples, row.metric)
    clusters = {part.cluster for of_example in parts.values() for part in of_example}
    if clusters == set(parts):
        return len(clusters), "examples"
    of_works = any("work" in line.record for line in lines(Path(row.folder), row.examples))
    return len(clusters), "works" if of_works else "clusters"


def _interval(low: float | None, high: float | None) -> tuple[float, float] | None:
    return None if pandas.isna(low) or pandas.isna(high) else (float(low), float(high))


@functools.lru_cache(maxsize=4096)
def _parts_of(folder: str, examples: int, metric: str) -> Mapping[str, list[Part]]:
    named = {line.id: _parts(line, metric) for line in lines(Path(folder), examples)}
    return {name: parts for name, parts in named.items() if parts}


class _Span(StoredModel):
    """The tokens around one position in a record."""

    nats: Number
    tokens: Annotated[int, Field(gt=0, lt=2**63)]


class _Details(StoredModel):
    """The positions and the questions in a record."""

    work: str | None = None
    positions: dict[str, _Span] = Field(default={})
    questions: list[dict[str, JsonValue]] = Field(default=[])


def _parts(line: ExampleLine, metric: str) -> list[Part]:
    """The parts of an example in a metric; metrics by position and by reach are made from its record."""
    if line.quality is None:
        return []
    stored = line.compared()
    if metric in stored:
        return stored[metric]
    at, far = POSITION.fullmatch(metric), REACH.fullmatch(metric)
    if at is None and far is None:
        return []
    try:
        details = _Details.model_validate(line.record)
    except pydantic.ValidationError as error:
        raise UserError(
            f"Example '{line.id}' has no {metric} ({first_fault(error)}): run its benchmark again."
        ) from None
    cluster = details.work or line.id
    if at and (span := details.positions.get(f"{at['tokens']}k")):
        return [Part(span.nats, span.tokens, cluster)]
    if far:
        questions = [question for question in details.questions if str(question.get("reach")) == far["reach"]]
        return [_question(question, far["base"], cluster) for question in questions]
    return []


def _question(question: Mapping[str, JsonValue], metric: str, cluster: str) -> Part:
    value = question.get(metric)
    if not isinstance(value, int | float):
        raise UserError(f"A question has no {metric}: run its benchmark again.")
    return Part(value, 1.0, str(question.get("cluster", cluster)))
