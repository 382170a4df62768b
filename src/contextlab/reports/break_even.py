"""The cost of a question when a context is read once and many questions are asked about it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Literal

from contextlab import grammar
from contextlab.errors import UserError
from contextlab.harness.stored import Result
from contextlab.reports import captions, costs
from contextlab.reports.cells import Cell, Column, Table
from contextlab.reports.dimensions import DIMENSIONS, latest
from contextlab.reports.filters import LeftOut
from contextlab.reports.names import Names

Resource = Literal["flops", "seconds"]
UNITS = {"flops": "TFLOP", "seconds": "s"}
FIELDS = {"flops": "TFLOPs", "seconds": "seconds"}
PHASES = ("contextualize", "query", "train")
QUESTIONS = (1, 10, 100, 1000)
ALWAYS, NEVER = 0.0, math.inf


@dataclasses.dataclass(frozen=True)
class CostLine:
    """The cost of one context and its questions: a straight line over the number of questions.

    Attributes:
        context: cost of reading the context.
        question: cost of one question.
    """

    context: float
    question: float

    def total(self, questions: float) -> float:
        """The cost of a context with so many questions."""
        return self.context + questions * self.question

    def each(self, questions: float) -> float:
        """The same for each of the questions."""
        return self.context / questions + self.question

    def meets(self, other: CostLine) -> float | None:
        """The number of questions at which both cost the same; None where one is cheaper for every number."""
        more, saved = self._beside(other)
        return more / saved if saved and more / saved > 0 else None

    def cheaper_from(self, other: CostLine) -> float:
        """The number of questions from which this costs less than the other.

        `ALWAYS` where it does so for any number of them, `NEVER` where it does not from any number on.
        """
        more, saved = self._beside(other)
        if saved > 0:
            return max(more / saved, ALWAYS)
        return ALWAYS if saved == 0 and more < 0 else NEVER

    def _beside(self, other: CostLine) -> tuple[float, float]:
        """The additional cost of the context over the other's, and the saving of every question."""
        return self.context - other.context, other.question - self.question


def line(result: Result, resource: Resource, contexts: int = 1) -> CostLine | None:
    """The costs of a result; None where it reads no context before its questions, or they were not measured.

    Args:
        result: whose training, where there was one, is a cost of its contexts.
        resource: FLOPs or seconds.
        contexts: over which the training is spread.
    """
    numbers = costs.numbers(result)
    context, query, training = (numbers.get(f"{FIELDS[resource]} {phase}") for phase in PHASES)
    if context is None or query is None:
        return None
    once = training.value / contexts if training is not None else 0.0
    questions = questions_of(result)
    if reads_again(result.split):
        return CostLine(once, (context.value + query.value) / questions)
    return CostLine(context.value + once, query.value / questions)


def reads_again(split: str) -> bool:
    """Whether a context is read for every question of a task, whose cost it then is."""
    settings = grammar.split(split).settings
    return settings.get("turns") == "prompts" or settings.get("choose") == "topk"


def questions_of(result: Result) -> float:
    """Questions of an example, as its measure counts them; 1 where the measure counts none."""
    counted = result.metrics.get(result.measure.name)
    return per_example(counted.n, result.data.scored) if counted else 1.0


def per_example(questions: int, examples: int) -> float:
    """Questions of an example that was scored; 1 where examples are what is counted, or their parts."""
    return max(questions / examples, 1.0)


def tables(
    results: Sequence[Result],
    resource: Resource = "flops",
    questions: Sequence[int] = QUESTIONS,
    names: Names | None = None,
    left_out: LeftOut | None = None,
    contexts: int = 1,
) -> Iterator[Table]:
    """Two tables for every task, context and machine: what methods cost for numbers of questions, and where they cross.

    The second has the number of questions per context from which the method of the row costs less than the method of
    the column, its training included: 0 where it always does, and nothing where it never does.

    Args:
        results: from `reports.stored.summaries`.
        resource: FLOPs, or seconds, which are never compared between machines.
        questions: the numbers of questions per context.
        names: for display.
        left_out: stored runs that are not among the results.
        contexts: over which the training is spread.

    Raises:
        UserError: when no result reads a context before its questions.
    """
    names = names or Names()
    groups: dict[tuple[str, ...], dict[str, tuple[Result, CostLine]]] = {}
    others = [name for name in DIMENSIONS if name != "method"]
    shown = latest(results)
    for words, result in shown:
        costs_of = line(result, resource, contexts)
        if costs_of is not None:
            key = tuple(words[name] for name in others)
            groups.setdefault(key, {})[names.of("method", words["method"])] = (result, costs_of)
    if not groups:
        raise UserError(
            f"No result here has {resource} of a context and of its questions: run a task with both, as chapterbreak."
        )
    rest = len(shown) - sum(map(len, groups.values()))
    without = (left_out or LeftOut(len(shown))).also(rest, f"without {resource} of a context and its questions")
    for key, members in groups.items():
        about = ", ".join(f"{name} {names.of(name, word)}" for name, word in zip(others, key, strict=True))
        group_tables = [_costs(members, resource, questions, contexts, about)]
        if len(members) > 1:
            group_tables.append(
                _crossings({name: cost_line for name, (_, cost_line) in members.items()}, resource, contexts, about)
            )
        yield from (dataclasses.replace(table, left_out=without.sentence) for table in group_tables)


def _costs(
    members: dict[str, tuple[Result, CostLine]], resource: Resource, questions: Sequence[int], contexts: int, about: str
) -> Table:
    """Each method's costs by phase, and for numbers of questions."""
    unit, field = UNITS[resource], FIELDS[resource]
    fixed = [
        Column("", f"{field} per context", "cost", "context", unit),
        Column("", f"{field} per question", "cost", "question", unit),
        Column("", "state MiB", "cost", "state", "MiB"),
        Column("", f"{field} train", "cost", "training", unit),
    ]
    many = [Column(f"{field} per question of", f"{count:,}", "cost", f"{count:,}", unit) for count in questions]
    cells: dict[tuple[int, int], Cell] = {}
    for row, (result, per_question) in enumerate(members.values()):
        numbers = costs.numbers(result)
        context = 0.0 if reads_again(result.split) else numbers[f"{field} contextualize"].value
        values = {0: context, 1: per_question.question}
        values |= {n: numbers[fixed[n].name].value for n in (2, 3) if fixed[n].name in numbers}
        values |= {n: per_question.each(count) for n, count in enumerate(questions, start=len(fixed))}
        noisy = resource == "seconds" and costs.disturbed(result)
        cells |= {
            (row, column): Cell(value, disturbed=noisy and column not in (2, 3)) for column, value in values.items()
        }
    noisy = any(cell.disturbed for cell in cells.values())
    costs_table = Table(
        ("method",),
        tuple((name,) for name in members),
        (*fixed, *many),
        cells,
        (
            "Cost of a context, of a question, and per question of so many about a context, with their share of "
            f"reading it and of {_training(contexts)}",
            about,
        ),
        (captions.DISTURBED,) if noisy else (),
        notes=tuple(captions.of_costs(fixed, noisy=noisy, each="context or question")),
    )
    # Columns in which nothing was measured are left out.
    return costs_table.part(
        range(len(costs_table.rows)), [n for n in range(len(costs_table.columns)) if costs_table.column(n)]
    )


def _crossings(lines: dict[str, CostLine], resource: Resource, contexts: int, about: str) -> Table:
    """From how many questions the method of a row is cheaper than that of a column."""
    columns = tuple(Column("cheaper than", name, "cost", name) for name in lines)
    cells = {
        (row, column): Cell(crossing)
        for row, own in enumerate(lines.values())
        for column, other in enumerate(lines.values())
        if row != column and (crossing := own.cheaper_from(other)) != NEVER
    }
    sentence = (
        f"Questions per context from which the method of the row needs less {_word(resource)} than that of the "
        f"column, with {_training(contexts)}; 0: for any number, empty: for none"
    )
    return Table(("method",), tuple((name,) for name in lines), columns, cells, (sentence, about))


def _word(resource: Resource) -> str:
    return {"flops": "computation", "seconds": "time"}[resource]


def _training(contexts: int) -> str:
    return f"the training, counted once for {contexts:,} context{'s' * (contexts != 1)}"
