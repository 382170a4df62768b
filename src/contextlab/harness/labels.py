"""How runs are called in tables: so that a label can be given to `--method` or `--task` again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from contextlab import grammar
from contextlab.benchmarks.task import LENGTHS
from contextlab.errors import UserError


def of_method(name: str, settings: Mapping[str, Any], *, untrained: bool = False) -> str:
    """A method with those of its settings that tell it apart, marked where it has learned nothing."""
    return " ".join([grammar.spelled(name, None, settings), *([grammar.UNTRAINED] if untrained else [])])


def of_result(result: Mapping[str, Any]) -> str:
    """The task of a stored result."""
    return of_task(result["task"], result["split"], {name: result.get(name) for name in LENGTHS})


def of_task(name: str, split: str, lengths: Mapping[str, int | None]) -> str:
    """A task with its split and settings.

    Args:
        name: of the task.
        split: as it is stored, with the settings that differ from their defaults.
        lengths: stored settings that are no part of it; None where one is not given.
    """
    given = {key: length for key, length in lengths.items() if length is not None}
    try:
        item = grammar.split(split)
    except UserError:  # stored before splits followed the grammar, or by somebody else
        item = grammar.Item(split)
    return grammar.spelled(name, item.name, {**item.settings, **given})
