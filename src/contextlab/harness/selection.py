"""The methods and tasks that a command names, with their settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from contextlab import grammar, registry
from contextlab.benchmarks.task import Task
from contextlab.config import Config, MethodConfig, alike
from contextlab.errors import UserError, short, unknown
from contextlab.grammar import Item
from contextlab.harness import labels
from contextlab.method import AnyMethod


@dataclasses.dataclass(frozen=True)
class SelectedMethod:
    """A method with its settings."""

    name: str
    kind: type[AnyMethod]
    config: MethodConfig

    @property
    def label(self) -> str:
        """Its name in tables."""
        return labels.of_method(self.name, self.config.changed())


@dataclasses.dataclass(frozen=True)
class SelectedTask:
    """A split of a task, which has its settings."""

    name: str
    task: Task
    split: str


def select(
    methods: str | Sequence[str],
    tasks: str | Sequence[str],
    split: str | None = None,
    settings: Mapping[str, Any] | None = None,
    **lengths: int | None,
) -> tuple[list[SelectedMethod], list[SelectedTask]]:
    """What is named, every method and task with the same settings once.

    Args:
        methods: as in `grammar.items`.
        tasks: likewise.
        split: of every task; each task's default when None.
        settings: each for all methods and tasks that have it.
        **lengths: `task.LENGTHS`, likewise; None where one is not given.

    Raises:
        UserError: for a wrong name, split or setting; for one that is given twice, or that nothing has; or for one
            for all that does not mean the same in all.
    """
    of_methods = [(item, registry.method_class(item.name)) for item in grammar.items(methods, "method")]
    of_tasks = [_with_split(item, split) for item in grammar.items(tasks, "task")]
    owners: list[tuple[Item, type[Config]]] = [(item, kind.Config) for item, kind in of_methods]
    owners += [(item, registry.task_class(item.name).Config) for item in of_tasks]
    dealt = _dealt(owners, settings or {}, {key: value for key, value in lengths.items() if value is not None})
    first, rest = dealt[: len(of_methods)], dealt[len(of_methods) :]
    return list(_methods(of_methods, first)), list(_tasks(of_tasks, rest))


def _methods(
    named: Sequence[tuple[Item, type[AnyMethod]]], settings: Sequence[Mapping[str, Any]]
) -> Iterator[SelectedMethod]:
    seen: list[tuple[str, Config]] = []
    for (item, kind), own in zip(named, settings, strict=True):
        config = kind.Config.parse(own, item.name)
        # A configuration need not be hashable.
        if (item.name, config) not in seen:
            seen.append((item.name, config))
            yield SelectedMethod(item.name, kind, config)


def _tasks(named: Sequence[Item], settings: Sequence[Mapping[str, Any]]) -> Iterator[SelectedTask]:
    seen: list[tuple[str, str, Config]] = []
    for item, own in zip(named, settings, strict=True):
        task = registry.task(item.name, own)
        split = task.check_split(item.split)
        if (item.name, split, task.config) not in seen:
            seen.append((item.name, split, task.config))
            yield SelectedTask(item.name, task, split)


def _with_split(item: Item, text: str | None) -> Item:
    """An item with the split that is given for all tasks, and its settings."""
    if text is None:
        return item
    if item.split is not None:
        raise UserError(f"{item.name} is given a split behind its name and by --split: keep one of the two.")
    split = grammar.split(text)
    _refuse_twice(item, split.settings, "--split")
    return Item(item.name, split.name, {**item.settings, **split.settings})


def _refuse_twice(item: Item, settings: Iterable[str], option: str) -> None:
    for key in settings:
        if key in item.settings:
            raise UserError(
                f"{item.name} is given {short(key)} twice, behind its name and by {option}: keep one of the two."
            )


def _dealt(
    owners: Sequence[tuple[Item, type[Config]]], settings: Mapping[str, Any], lengths: Mapping[str, Any]
) -> list[Mapping[str, Any]]:
    """The settings of every method and task: its own, and those for all that it has."""
    for key in lengths:
        if key in settings:
            raise UserError(f"{key} is given by --{key} and by --set: keep one of the two.")
    names = ", ".join(dict.fromkeys(item.name for item, _ in owners))
    fields = [[field.name for field in dataclasses.fields(kind)] for _, kind in owners]
    for key, value in {**settings, **lengths}.items():
        having = [owner for owner, known in zip(owners, fields, strict=True) if key in known]
        option = f"--{key}" if key in lengths else "--set"
        if not having and key in lengths:
            raise UserError(f"No setting of {names} is called {key}: leave --{key} out.")
        if not having:
            raise unknown(f"setting of {names}", key, {name for known in fields for name in known})
        _check_alike(having, key, value, option)
        for item, _ in having:
            _refuse_twice(item, [key], option)
    shared = {**settings, **lengths}
    return [
        {**item.settings, **{key: value for key, value in shared.items() if key in known}}
        for (item, _), known in zip(owners, fields, strict=True)
    ]


def _check_alike(having: Sequence[tuple[Item, type[Config]]], key: str, value: Any, option: str) -> None:
    """Refuse one value for settings that only share their name."""
    first, kind = having[0]
    other = next((item for item, config in having if not alike(kind, config, key)), None)
    if other is not None:
        example = grammar.spelled(first.name, first.split, {key: value})
        raise UserError(
            f"{key} means different things in {first.name} and {other.name}: write it at each instead of {option}, "
            f"as {example}."
        )
