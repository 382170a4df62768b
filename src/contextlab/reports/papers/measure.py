"""Runs the recipes, or finds their runs in a store."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from contextlab.backbone.embedded import EMBEDDED
from contextlab.errors import UserError
from contextlab.harness import labels, runner
from contextlab.harness.selection import SelectedMethod, SelectedTask, select
from contextlab.reports.papers.schema import Entry, Paper, Run
from contextlab.reports.tables import load_results

Result = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Measured:
    """One method of a run, and its result; None where nothing is stored."""

    run: Run
    row: str
    method: str
    task: str
    result: Result | None


def measured(runs: Iterable[Run], **options: Any) -> Iterator[Measured]:
    """Make the runs; stored examples are not run again.

    Args:
        runs: of a recipe.
        **options: as of `runner.bench`; a `limit` of None leaves that of every run.

    Raises:
        UserError: for what `bench` refuses.
    """
    for run in runs:
        limit = options.get("limit") or run.limit
        results = runner.bench(run.methods, run.task, **{**options, "limit": limit})
        for (row, method, task), result in zip(_named(run), results.runs, strict=True):
            yield Measured(run, row, method, task, result)


def stored(runs: Iterable[Run], folder: Path, backbone: str = EMBEDDED) -> Iterator[Measured]:
    """The newest stored result of every method of the runs, whatever its number of examples.

    Raises:
        UserError: when there are no results below the folder, or one is broken.
    """
    newest = sorted(load_results(folder), key=lambda one: str(one["provenance"]["started"]), reverse=True)
    own = [one for one in newest if one["context"] == "own" and one["backbone"] == backbone]
    for run in runs:
        methods, (task,) = select(run.methods, run.task)
        label = _label(task)
        for row, method in zip(run.rows, methods, strict=True):
            fitting = (one for one in own if labels.of_result(one) == label and _is_of(one, method))
            yield Measured(run, row, method.label, label, next(fitting, None))


def missing(paper: Paper, entry: Entry, data: Path | None) -> list[str]:
    """What this machine lacks to run an entry at the paper's scale, as parts of a sentence."""
    never = [words for words in (paper.model.missing, entry.paper.missing) if words]
    if never or entry.paper.backbone is None:
        return never
    return [*_absent_model(entry.paper.backbone), *dict.fromkeys(_absent_data(entry.paper.runs, data))]


def _absent_model(name: str) -> Iterator[str]:
    from huggingface_hub import try_to_load_from_cache

    if not isinstance(try_to_load_from_cache(name, "config.json"), str):
        yield f"the model {name} is not in the cache of the hub on this machine"


def _absent_data(runs: Iterable[Run], data: Path | None) -> Iterator[str]:
    for run in runs:
        _, (one,) = select(run.methods, run.task)
        if not _is_there(one, data):
            yield f"the data of {one.name}/{one.split} is not there"


def _is_there(one: SelectedTask, data: Path | None) -> bool:
    try:
        return one.task.load(one.split, data).source != "sample"
    except UserError:
        return False


def _named(run: Run) -> list[tuple[str, str, str]]:
    """Row, label of the method and label of the task, for every method of a run."""
    methods, (task,) = select(run.methods, run.task)
    return [(row, method.label, _label(task)) for row, method in zip(run.rows, methods, strict=True)]


def _label(one: SelectedTask) -> str:
    options = one.task.options("own")
    lengths = {"history": options.history, "tokens": options.tokens}
    return labels.of_task(one.name, one.task.spelled(one.split), lengths)


def _is_of(result: Result, method: SelectedMethod) -> bool:
    """Whether a stored result is of a method; settings that are newer than the result must have their defaults."""
    settings = json.loads(json.dumps(method.config.as_dict(), default=str))
    before: Mapping[str, Any] = {**settings, **result["method_config"]}
    newer = set(method.config.changed()) - set(result["method_config"])
    return result["method"] == method.name and not newer and all(before[name] == settings[name] for name in settings)
