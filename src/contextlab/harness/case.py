"""One task under one control, with the examples that every method runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import get_args

from contextlab.benchmarks.examples import Example
from contextlab.benchmarks.task import Control, Dataset, Metric, Options, Protocol, Task
from contextlab.errors import UserError, unknown
from contextlab.harness import labels
from contextlab.harness.selection import SelectedTask
from contextlab.harness.stored import Data, ExampleLine


@dataclasses.dataclass(frozen=True)
class TaskCase:
    """One task under one control, with the same examples for every method.

    Attributes:
        first: number of the first example of a part of a run; None for a whole run.
    """

    name: str
    task: Task
    split: str
    options: Options
    dataset: Dataset
    protocol: Protocol
    limit: int | None
    first: int | None = None

    @property
    def label(self) -> str:
        """The task's label in tables."""
        return labels.of_task(self.name, self.split, {"history": self.options.history, "tokens": self.options.tokens})

    @property
    def data(self) -> Data:
        """The description of its data, as it is stored."""
        dataset = self.dataset
        return Data(source=dataset.source, sha256=dataset.sha256, examples=len(self.selected), note=dataset.note)

    @property
    def selected(self) -> Sequence[Example]:
        """The examples that are run, from number `first` up to the limit."""
        return self.dataset.examples[self.first : self.limit]

    def metrics(self, lines: Sequence[ExampleLine]) -> dict[str, Metric]:
        """Metrics over finished examples; none where a part of a run has only examples that were skipped.

        Raises:
            UserError: when all examples of a whole run were skipped.
        """
        if self.first is not None and all(line.quality is None for line in lines):
            return {}
        return self.protocol.summarise([line.record for line in lines])

    def check(self) -> None:
        """Refuse a data set that cannot be run.

        Raises:
            UserError: when it is empty, two examples share an id, one is no `Example`, or the wrong context needs a
                second work.
        """
        if not all(isinstance(example, Example) for example in self.dataset.examples):
            raise UserError(f"{self.name} {self.split} holds examples without id or work: give every example both.")
        ids = [example.id for example in self.dataset.examples]
        if not ids:
            raise UserError(f"{self.name} {self.split} holds no examples: choose another split or data folder.")
        if len(set(ids)) < len(ids):
            twice = next(i for i in ids if ids.count(i) > 1)
            raise UserError(f"{self.name} {self.split} holds two examples '{twice}': give every example its own id.")
        if self.options.context == "wrong" and len({example.work for example in self.dataset.examples}) == 1:
            raise UserError(f"{self.name} {self.split} holds a single work: run it without --context wrong.")

    def other(self, index: int) -> Example:
        """The next example of another work; the example itself when there is no other work."""
        examples: Sequence[Example] = self.dataset.examples
        own = examples[index]
        later = (*examples[index + 1 :], *examples[:index])
        return next((example for example in later if example.work != own.work), own)


def cases(
    tasks: Sequence[SelectedTask],
    controls: Sequence[Control],
    limit: int | None,
    first: int | None = None,
) -> Iterator[TaskCase]:
    """Every task that is loaded, under every control.

    Raises:
        UserError: when the limit leaves no example, or a data set cannot be run.
    """
    if limit is not None and limit < 1:
        raise UserError(f"--limit {limit} leaves no example: give 1 or more.")
    for control in controls:
        for selected in tasks:
            if selected.dataset is None:
                continue
            protocol = selected.task.protocol(selected.split, control)
            options = selected.task.options(control)
            case = TaskCase(
                selected.name,
                selected.task,
                selected.task.spelled(selected.split),
                options,
                selected.dataset,
                protocol,
                limit,
                first,
            )
            case.check()
            yield case


def labels_of(on_tasks: Sequence[TaskCase]) -> list[str]:
    """The labels of tasks in tables, with a digest of their data where another one has the same label."""
    return labels.apart([(case.label, case.dataset.sha256) for case in on_tasks])


def controls_of(names: str | Sequence[str]) -> list[Control]:
    """The controls in a text with commas, or in a list of names, without repetition."""
    listed = names.split(",") if isinstance(names, str) else names
    distinct = dict.fromkeys(name.strip() for name in listed if name.strip())
    if not distinct:
        raise UserError("No context is named: give at least one with --context.")
    return [_control(name) for name in distinct]


def _control(name: str) -> Control:
    for control in get_args(Control):
        if name == control:
            chosen: Control = control
            return chosen
    raise unknown("context", name, get_args(Control))
