"""Finds methods and tasks: built-in and third-party ones by entry point, a user's own file by `path.py:Class`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contextlab import foreign_code, grammar
from contextlab.errors import UserError, unknown
from contextlab.foreign_code import foreign as foreign
from contextlab.trained import METHODS as METHODS

if TYPE_CHECKING:
    from contextlab.benchmarks.task import Task
    from contextlab.method import AnyMethod

TASKS = "contextlab.tasks"


def methods() -> dict[str, str]:
    """Names of all methods, each with the package it comes from."""
    return _names(METHODS)


def tasks() -> dict[str, str]:
    """Names of all tasks, each with the package it comes from."""
    return _names(TASKS)


def method_class(name: str) -> type[AnyMethod]:
    """The class of a method, by name or `path.py:Class`.

    Raises:
        UserError: when there is none of that name, it cannot be imported, or it is no method.
    """
    from contextlab.method import ContextMethod, MethodConfig

    kind: type[AnyMethod] = _class("method", METHODS, name, ContextMethod)
    if not (isinstance(kind.Config, type) and issubclass(kind.Config, MethodConfig)):
        raise UserError(
            f"The Config of method {_named(METHODS, name)} is no MethodConfig: derive it from contextlab's."
        )
    try:
        inspect.signature(kind).bind(None, None)
    except (TypeError, ValueError):
        raise UserError(
            f"The method {_named(METHODS, name)} is not built from a backbone and a config: give it such an __init__."
        ) from None
    return kind


def task_class(name: str) -> type[Task]:
    """The class of a task, by name or `path.py:Class`.

    Raises:
        UserError: when there is none of that name, it cannot be imported, or it is no task.
    """
    from contextlab.benchmarks.task import Task
    from contextlab.config import Config

    kind: type[Task] = _class("task", TASKS, name, Task)
    if not (isinstance(kind.Config, type) and issubclass(kind.Config, Config)):
        raise UserError(f"The Config of task {_named(TASKS, name)} is no Config: derive it from contextlab's.")
    return kind


def task(name: str, settings: Mapping[str, Any] | None = None) -> Task:
    """A task, by name or `path.py:Class`, with these of its settings and the defaults of the others.

    Raises:
        UserError: when there is none of that name, it cannot be imported, or it is no task; or for a wrong setting.
    """
    kind = task_class(name)
    arguments = [kind.Config.parse(settings, name)] if settings else []
    with foreign(f"The task {_named(TASKS, name)} cannot be made", "give it an __init__ with a config or nothing"):
        built = kind(*arguments)
        splits, default = built.splits, built.default_split
    texts = isinstance(splits, dict) and all(isinstance(text, str) for item in splits.items() for text in item)
    if not texts or default not in splits:
        raise UserError(
            f"The task {_named(TASKS, name)} says no splits, or its default is none of them: give it both, as texts."
        )
    return built


def task_and_split(name: str, split: str | None, settings: Mapping[str, Any] | None = None) -> tuple[Task, str]:
    """A task with the settings that follow its split, as results store them, and further ones; and the split.

    Raises:
        UserError: as `task`, or for an unknown split.
    """
    item = grammar.NamedItem("") if split is None else grammar.split(split)
    built = task(name, {**item.settings, **(settings or {})})
    return built, built.check_split(item.name or None)


def without_folder(name: str) -> str:
    """A name without the folder of `path.py:Class`, which depends on the working directory."""
    path, separator, attribute = name.rpartition(":")
    return f"{Path(path).name}:{attribute}" if separator else name


def sources(group: str) -> dict[str, str]:
    """The classes of a group by name, as `module:Class`, without importing them."""
    return {entry.name: entry.value for entry in sorted(metadata.entry_points(group=group))}


def _names(group: str) -> dict[str, str]:
    packages: dict[str, dict[str, None]] = {}
    for entry in sorted(metadata.entry_points(group=group)):
        packages.setdefault(entry.name, {})[_package(entry)] = None
    return {name: " and ".join(of) for name, of in packages.items()}


def _package(entry: metadata.EntryPoint) -> str:
    # What is left of a package that was half removed may have no name.
    named = entry.dist.metadata["Name"] if entry.dist is not None else None
    return str(named or entry.value.partition(".")[0])


def _class(kind: str, group: str, name: str, base: type[Any]) -> Any:
    """The class that a name stands for.

    Raises:
        UserError: when it is none, or none that can be used.
    """
    loaded = _find(kind, group, name)
    if not isinstance(loaded, type) or not issubclass(loaded, base):
        what = f"class {loaded.__name__}" if isinstance(loaded, type) else type(loaded).__name__
        raise UserError(
            f"The {what} that {_named(group, name)} stands for is no {kind}: derive it from "
            f"{base.__module__}.{base.__name__}."
        )
    if inspect.isabstract(loaded):
        missing = ", ".join(sorted(getattr(loaded, "__abstractmethods__", ())))
        raise UserError(f"The {kind} {_named(group, name)} lacks {missing}: add what is missing.")
    return loaded


def _named(group: str, name: str) -> str:
    package = _names(group).get(name)
    return f"'{name}' of package {package}" if package else f"'{name}'"


def _find(kind: str, group: str, name: str) -> Any:
    if ".py" in name:
        return foreign_code.attribute(kind, name)
    entries = {entry.value: entry for entry in metadata.entry_points(group=group) if entry.name == name}
    if not entries:
        raise unknown(kind, name, _names(group))
    if len(entries) > 1:
        packages = " and ".join(sorted(_package(entry) for entry in entries.values()))
        raise UserError(f"The {kind} '{name}' is registered by {packages}: uninstall all but one of them.")
    (entry,) = entries.values()
    package = _package(entry)
    with foreign(f"The {kind} '{name}' of package {package} cannot be imported", f"update or uninstall {package}"):
        return entry.load()
