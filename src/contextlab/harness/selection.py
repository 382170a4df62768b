"""The methods and tasks that a command names, with their settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from contextlab import grammar, naming, registry, trained
from contextlab.backbone import Backbone
from contextlab.benchmarks.task import Dataset, Task
from contextlab.config import Config, alike
from contextlab.errors import UserError, short, unknown
from contextlab.grammar import NamedItem
from contextlab.harness import labels
from contextlab.harness.labels import WeightsName
from contextlab.method import AnyMethod
from contextlab.naming import Meaning, NamedMethod


@dataclasses.dataclass(frozen=True)
class SelectedTask:
    """A task with its settings, and a split.

    Attributes:
        dataset: its examples; None before they are loaded.
    """

    name: str
    task: Task
    split: str
    dataset: Dataset | None = None

    def loaded(self, data: Path | None, backbone: Backbone | None = None) -> SelectedTask:
        """The task with its examples, unless they have lengths in tokens and there is no backbone yet.

        Raises:
            UserError: when the data set is missing or broken.
        """
        if self.dataset is not None or (self.task.in_tokens and backbone is None):
            return self
        task = self.task if backbone is None else self.task.on(backbone)
        return dataclasses.replace(self, task=task, dataset=task.load(self.split, data))


def select(
    methods: str | Sequence[str],
    tasks: str | Sequence[str],
    split: str | None = None,
    settings: Mapping[str, Any] | None = None,
    **lengths: int | None,
) -> tuple[list[NamedMethod], list[SelectedTask]]:
    """The methods and tasks that are named, without repetition.

    Args:
        methods: as in `grammar.items`.
        tasks: as in `grammar.items`.
        split: split of every task; each task's default when None.
        settings: settings for all methods and tasks that have them.
        **lengths: the settings `task.LENGTHS`, for all tasks that have them; None where one is not set.

    Raises:
        UserError: for an unknown name, split or setting; for a setting that is written twice; for a setting for all
            that nothing has, or that has different meanings.
    """
    of_methods = naming.methods(methods)
    of_tasks = [_with_split(item, split) for item in grammar.items(tasks, "task")]
    owners: list[tuple[NamedItem, type[Config]]] = [(item, meaning.kind.Config) for item, meaning in of_methods]
    owners += [(item, registry.task_class(item.name).Config) for item in of_tasks]
    dealt = _dealt(owners, settings or {}, {key: value for key, value in lengths.items() if value is not None})
    first, rest = dealt[: len(of_methods)], dealt[len(of_methods) :]
    return list(_methods(of_methods, first)), list(_tasks(of_tasks, rest))


def _methods(
    named: Sequence[tuple[NamedItem, Meaning]], settings: Sequence[Mapping[str, Any]]
) -> Iterator[NamedMethod]:
    yielded: list[NamedMethod] = []
    for (_, meaning), own in zip(named, settings, strict=True):
        method = meaning.with_settings(own)
        # A configuration may not be hashable.
        if method not in yielded:
            yielded.append(method)
            yield method


def _tasks(named: Sequence[NamedItem], settings: Sequence[Mapping[str, Any]]) -> Iterator[SelectedTask]:
    yielded: list[tuple[str, str, Config]] = []
    for item, own in zip(named, settings, strict=True):
        task = registry.task(item.name, own)
        split = task.check_split(item.split)
        if (item.name, split, task.config) not in yielded:
            yielded.append((item.name, split, task.config))
            yield SelectedTask(item.name, task, split)


def _with_split(item: NamedItem, text: str | None) -> NamedItem:
    """An item with the split for all tasks and the settings of that split."""
    if text is None:
        return item
    if item.split is not None:
        raise UserError(f"{item.name} has a split after its name and another in --split: keep one of the two.")
    split = grammar.split(text)
    _refuse_twice(item, split.settings, "--split")
    return NamedItem(item.name, split.name, {**item.settings, **split.settings})


def _refuse_twice(item: NamedItem, settings: Iterable[str], option: str) -> None:
    for key in settings:
        if key in item.settings:
            raise UserError(f"{item.name} has {short(key)} twice, after its name and in {option}: keep one of the two.")


def _dealt(
    owners: Sequence[tuple[NamedItem, type[Config]]], settings: Mapping[str, Any], lengths: Mapping[str, Any]
) -> list[Mapping[str, Any]]:
    """The settings of every method and task: its own, and those for all, where it has them."""
    for key in lengths:
        if key in settings:
            raise UserError(f"{key} is set by --{key} and by --set: keep one of the two.")
    names = ", ".join(dict.fromkeys(item.name for item, _ in owners))
    fields = [[field.name for field in dataclasses.fields(kind)] for _, kind in owners]
    for key, value in {**settings, **lengths}.items():
        having = [owner for owner, keys in zip(owners, fields, strict=True) if key in keys]
        option = f"--{key}" if key in lengths else "--set"
        if not having and key in lengths:
            raise UserError(f"No setting of {names} is called {key}: leave --{key} out.")
        if not having:
            raise unknown(f"setting of {names}", key, {name for keys in fields for name in keys})
        _check_alike(having, key, value, option)
        for item, _ in having:
            _refuse_twice(item, [key], option)
    shared = {**settings, **lengths}
    return [
        {**item.settings, **{key: value for key, value in shared.items() if key in keys}}
        for (item, _), keys in zip(owners, fields, strict=True)
    ]


def _check_alike(having: Sequence[tuple[NamedItem, type[Config]]], key: str, value: Any, option: str) -> None:
    """Refuse one value for settings that have the same name and different meanings."""
    first, kind = having[0]
    other = next((item for item, config in having if not alike(kind, config, key)), None)
    if other is not None:
        example = grammar.spelled(first.name, first.split, {key: value})
        raise UserError(
            f"{key} means different things in {first.name} and {other.name}: write it at each instead of {option}, "
            f"as {example}."
        )


@dataclasses.dataclass(frozen=True)
class BuiltMethod:
    """A method on its backbone.

    Attributes:
        name: registered, or `path.py:Class`.
        method: on the backbone.
        weights: what names it, where trained weights do.
        label: in tables and in commands, without marks.
    """

    name: str
    method: AnyMethod
    weights: WeightsName | None
    label: str

    @property
    def note(self) -> str:
        """Says of weights that were found, and not named, in which settings they were trained otherwise."""
        if self.weights is None or not self.weights.changed or self.method.config.as_dict().get("weights") != "auto":
            return ""
        trained_with = self.weights.trained_with
        pairs = ((key, trained_with[key]) for key in self.weights.changed if key in trained_with)
        differing = ", ".join(f"{key}={grammar.spelled_value(value)}" for key, value in pairs)
        return f"{self.label} has weights that were trained with {differing}: write weights=none to leave them out."


def built(methods: Iterable[NamedMethod], backbone: Backbone) -> list[BuiltMethod]:
    """The methods on a backbone, without repetition.

    Raises:
        UserError: when settings or weights do not fit the backbone, or the memory.
    """
    by_label: dict[str, BuiltMethod] = {}
    for named in methods:
        method = labelled(named.name, named.fresh(backbone))
        by_label.setdefault(method.label, method)
    return list(by_label.values())


def labelled(name: str, method: AnyMethod) -> BuiltMethod:
    """A method that is built, with its label.

    Args:
        name: registered, or `path.py:Class`.
        method: on its backbone.
    """
    settings, defaults = method.config.as_dict(), method.config.defaults()
    weights = WeightsName.of(method.trained_weights, name, settings, defaults, method.config.free_at_test)
    if weights is None:
        shown = labels.with_form(name, method.config.changed(), method.backbone.digest, trained.recommendations())
        return BuiltMethod(name, method, None, grammar.spelled_method(name, shown))
    changed = {key: value for key, value in settings.items() if key in weights.changed}
    return BuiltMethod(name, method, weights, grammar.spelled_method(weights.name, changed))
