"""Runs the recipes, or finds their runs in a store."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from contextlab import naming
from contextlab.backbone.embedded import EMBEDDED
from contextlab.errors import UserError
from contextlab.harness import labels, runner
from contextlab.harness.selection import SelectedTask, select
from contextlab.harness.stored import Result, plain
from contextlab.naming import NamedMethod
from contextlab.reports.dimensions import started
from contextlab.reports.papers.schema import Paper, PaperEntry, PaperRun
from contextlab.reports.stored import load_results


@dataclasses.dataclass(frozen=True)
class Measured:
    """One method of a run.

    Attributes:
        run: of the recipe.
        row: of the paper's table.
        method: its label.
        task: its label.
        result: None where nothing is stored.
        twin: of a method that has learned, the result of its twin on the same examples; None where it was not measured.
    """

    run: PaperRun
    row: str
    method: str
    task: str
    result: Result | None
    twin: Result | None = None


def measured(runs: Iterable[PaperRun], **options: Any) -> Iterator[Measured]:
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
        methods, (task,) = select(run.methods, run.task)
        for row, method, result in zip(run.rows, methods, results.runs, strict=True):
            yield _measured(run, row, method, _label(task), result, results.runs)


def stored(runs: Iterable[PaperRun], folder: Path, backbone: str = EMBEDDED) -> Iterator[Measured]:
    """The stored results of the methods of every run, all on the same examples, whatever their number.

    Of several groups of results on the same examples it is the one with the most methods, and then the newest.

    Raises:
        UserError: when there are no results below the folder, or one is broken.
    """
    newest = sorted(load_results(folder), key=started, reverse=True)
    own = [result for result in newest if result.context == "own" and result.backbone == backbone]
    for run in runs:
        methods, (task,) = select(run.methods, run.task)
        label = _label(task)
        on_task = [result for result in own if labels.of_result(result) == label]
        fitting = [
            {_examples(result): result for result in reversed(on_task) if _is_of(result, method)} for method in methods
        ]
        groups = dict.fromkeys(_examples(result) for result in on_task)
        # The first of equal ones, which is the newest.
        chosen = max(groups, key=lambda group: sum(group in results for results in fitting), default=("", 0))
        for row, method, results in zip(run.rows, methods, fitting, strict=True):
            yield _measured(run, row, method, label, results.get(chosen), on_task)


def _measured(
    run: PaperRun, row: str, method: NamedMethod, task: str, result: Result | None, others: Sequence[Result]
) -> Measured:
    if result is None:
        return Measured(run, row, method.label, task, None)
    named = result.model_copy(update={"changed": list(method.config.changed())})
    return Measured(run, row, labels.whole(named), task, result, _twin(result, others))


def _twin(result: Result, others: Iterable[Result]) -> Result | None:
    """The result of a method's twin on the same examples."""
    try:
        twin = None if result.twin is None else naming.single(result.twin)
    except UserError:  # stored by a version with other settings, or of a method that is not installed
        return None
    same = (other for other in others if _examples(other) == _examples(result))
    return None if twin is None else next((other for other in same if _is_of(other, twin)), None)


def missing(paper: Paper, entry: PaperEntry, data: Path | None) -> list[str]:
    """Reasons why this machine cannot run an entry at the paper's scale, as parts of a sentence."""
    if entry.paper is None:
        return ["nothing of it is run"]
    never = [words for words in (paper.model.missing, entry.paper.missing) if words]
    if never or entry.paper.backbone is None:
        return never
    return [*_absent_model(entry.paper.backbone), *dict.fromkeys(_absent_data(entry.paper.runs, data))]


def _absent_model(name: str) -> Iterator[str]:
    from huggingface_hub import try_to_load_from_cache

    if not isinstance(try_to_load_from_cache(name, "config.json"), str):
        yield f"the model {name} is not in the cache of the hub on this machine"


def _absent_data(runs: Iterable[PaperRun], data: Path | None) -> Iterator[str]:
    for run in runs:
        _, (task,) = select(run.methods, run.task)
        if not _is_there(task, data):
            yield f"the data of {task.name}/{task.split} is not there"


def _is_there(selected: SelectedTask, data: Path | None) -> bool:
    try:
        return selected.task.load(selected.split, data).source != "sample"
    except UserError:
        return False


def _label(selected: SelectedTask) -> str:
    options = selected.task.options("own")
    lengths = {"history": options.history, "tokens": options.tokens}
    return labels.of_task(selected.name, selected.task.spelled(selected.split), lengths)


def _examples(result: Result) -> tuple[str, int]:
    """Equal for results of one task on the same examples."""
    return result.data.sha256, result.data.examples


def _is_of(result: Result, method: NamedMethod) -> bool:
    """Whether a stored result is of a method; settings that are newer than the result must have their defaults."""
    settings = plain(method.config.as_dict())
    before = {**settings, **result.method_config}
    if method.weights is not None or (settings.get("weights") == "auto" and _uses_listed(result)):
        before["weights"] = settings["weights"]
    if method.weights is not None and result.weights_name != method.weights.name:
        return False
    newer = set(method.config.changed()) - set(result.method_config) - {"weights"}
    return result.method == method.name and not newer and all(before[name] == settings[name] for name in settings)


def _uses_listed(result: Result) -> bool:
    """Whether the weights of a result are those that `auto` finds: listed ones, or none before they were looked for."""
    return result.weights_name is not None or result.method_config.get("weights") is None
