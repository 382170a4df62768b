"""Labels of runs in tables, which are also valid arguments of `--method` and `--task`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from contextlab import grammar
from contextlab.cards import short_count
from contextlab.errors import UserError
from contextlab.harness.stored import Result


def of_method(name: str, settings: Mapping[str, Any], *, untrained: bool = False, trained: int | None = None) -> str:
    """A method with its distinguishing settings, marked as untrained or trained where it can learn.

    Args:
        name: name of the method.
        settings: settings in the label.
        untrained: whether its weights are the initial ones.
        trained: number of training tokens, where that is known.
    """
    marks = [grammar.UNTRAINED] if untrained else [f"(trained {short_count(trained)})"] if trained else []
    return " ".join([grammar.spelled_method(name, settings), *marks])


def of_run(result: Result, settings: Mapping[str, Any]) -> str:
    """The method of a stored result, with these settings."""
    trained = None if result.cost.train is None else result.cost.train.tokens
    return of_method(result.method, settings, untrained=result.untrained, trained=trained)


def of_result(result: Result) -> str:
    """The task of a stored result."""
    return of_task(result.task, result.split, {"history": result.history, "tokens": result.tokens})


def of_task(name: str, split: str, lengths: Mapping[str, int | None]) -> str:
    """A task with its split and settings.

    Args:
        name: of the task.
        split: as it is stored, with the settings that differ from their defaults.
        lengths: stored settings that are not part of the split; None where one is not set.
    """
    set_lengths = {key: length for key, length in lengths.items() if length is not None}
    try:
        item = grammar.split(split)
    except UserError:  # stored by a version without this grammar, or by another program
        item = grammar.Item(split)
    return grammar.spelled(name, item.name, {**item.settings, **set_lengths})
