"""The shards of a run, put together: a union by id, and the result that the run would have had at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from contextlab import grammar, registry
from contextlab.benchmarks.task import Protocol
from contextlab.harness import store
from contextlab.harness.aggregation import Peaks, largest_batch, summarised, unmeasured
from contextlab.harness.stored import ExampleLine, Result
from contextlab.sweeps.places import Place
from contextlab.sweeps.plan import SweepRun
from contextlab.sweeps.shards import Shard


def merge(place: Place, run: SweepRun, shards: Sequence[Shard]) -> bool:
    """Put finished shards into the folder of their run; repeated, it changes nothing.

    Examples that are there already stay as they are, and an example of two shards is stored once.

    Returns:
        Whether the run has its result. It has none where examples of an earlier command still owe a measurement, which
        the ordinary runner makes when it finishes the run.

    Raises:
        UserError: when a shard is broken, or the folder of the run cannot be written.
    """
    folders = [place.take(shard.folder) for shard in shards]
    results = [store.read_result(folder) for folder in folders]
    manifest = store.read_manifest(folders[0])
    assert manifest is not None
    place.take(run.run_id)
    with store.open_run(place.folder, manifest.identity, manifest.provenance) as stored:
        measured = _measured(stored.lines.values(), stored.summary)
        for folder, result in zip(folders, results, strict=True):
            lines = store.lines(folder)
            measured |= _measured(lines, result)
            stored.extend([line for line in lines if line.id not in stored.lines])
        every = list(stored.lines.values())
        unmeasured_lines = unmeasured([line for line in every if line.id not in measured], 0)
        mixed = len({line.recounted for line in every}) > 1
        if not unmeasured_lines and not mixed:
            summaries = [result for result in (stored.summary, *results) if result is not None]
            started, batch = stored.manifest.provenance.started, largest_batch(every, summaries)
            about = results[0].provenance.model_copy(update={"started": started, "batch": batch})
            first = sorted((line for line in every if line.index < run.examples), key=lambda line: line.index)
            base = results[0].model_copy(update={"provenance": about})
            stored.finish(summarised(base, _protocol(run), first, _highest(summaries, len(measured))))
    place.give(run.run_id)
    return not unmeasured_lines and not mixed


def _measured(lines: Iterable[ExampleLine], result: Result | None) -> set[str]:
    """Ids of the lines whose peak memory a result covers, the first ones."""
    return {line.id for line in list(lines)[: Peaks.of(result).examples]}


def _highest(results: Iterable[Result], examples: int) -> Peaks:
    """The highest peaks of several results, for so many lines."""
    peaks = Peaks({}, 0)
    for result in results:
        peaks = peaks.with_measured(Peaks.of(result).phases, examples)
    return peaks


def _protocol(run: SweepRun) -> Protocol:
    """The protocol that summarises its records."""
    item = grammar.single(run.task, "task")
    task = registry.task(item.name, item.settings)
    return task.protocol(task.check_split(item.split), run.context)
