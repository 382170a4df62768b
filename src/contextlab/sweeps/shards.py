"""Shards: ranges of the examples of a run, each run by the ordinary runner into a small store of its own."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections.abc import Sequence

import torch

from contextlab.harness import store
from contextlab.harness.store import SUMMARY
from contextlab.sweeps.places import SHARDS, Place
from contextlab.sweeps.plan import SweepRun
from contextlab.sweeps.suite import Suite

SECONDS = 600.0
"""A shard takes about so long: what a dead worker had not finished is little, and so is the time to load a model."""


@dataclasses.dataclass(frozen=True)
class Shard:
    """A part of a run.

    Attributes:
        run: the run.
        examples: numbers of its examples; None for the whole run, which goes into its own folder.
    """

    run: SweepRun
    examples: range | None = None

    @property
    def store(self) -> str:
        """The folder of its store, below the place of the sweep; empty for the place itself."""
        return "" if self.examples is None else f"{SHARDS}/{self.examples.start}-{self.examples.stop}"

    @property
    def folder(self) -> str:
        """The folder that the run has there."""
        return f"{self.store}/{self.run.run_id}".lstrip("/")


def is_stored(place: Place, run: SweepRun) -> bool:
    """Whether a run has its result over these examples.

    Raises:
        UserError: when what is stored is broken.
    """
    folder = place.take(run.run_id)
    return (folder / SUMMARY).exists() and store.read_result(folder).data.examples == run.examples


def shards_of(place: Place, run: SweepRun, most: int) -> list[Shard]:
    """What is left of a run: the shards that have begun, and new ones of the other examples.

    Args:
        place: of the sweep.
        run: one that is not stored.
        most: examples of a new shard.

    Returns:
        The whole run as the only shard where that is not more, or where only its result is missing.
    """
    shards = _begun(place, run)
    stored = {line.index for line in store.lines(place.take(run.run_id))}
    covered = stored.union(*shards)
    fresh = divided([index for index in range(run.examples) if index not in covered], most)
    if not shards and len(fresh) <= 1:
        return [Shard(run)]
    return [Shard(run, examples) for examples in sorted([*shards, *fresh], key=lambda examples: examples.start)]


def divided(numbers: Sequence[int], most: int) -> list[range]:
    """Ascending numbers as ranges, none of which is longer than `most`."""
    stretches = itertools.groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])
    whole = [[number for _, number in pairs] for _, pairs in stretches]
    return [
        range(start, min(start + most, part[-1] + 1)) for part in whole for start in range(part[0], part[-1] + 1, most)
    ]


def most_examples(run: SweepRun, workers: int) -> int:
    """Examples that take about `SECONDS`; where nobody knows the time, every worker has a share."""
    if run.estimate is None:
        return max(-(-run.examples // workers), 1)
    return max(round(SECONDS * run.examples / max(run.estimate.seconds, 1e-9)), 1)


def work(suite: Suite, shard: Shard, threads: int, command: Sequence[str]) -> None:
    """Run a shard, as a worker does: what is stored of it is not run again.

    Args:
        suite: options for all runs.
        shard: what to run.
        threads: of torch.
        command: arguments of the process that asked for it, for the provenance.

    Raises:
        UserError: as `bench`.
    """
    from contextlab.harness.runner import bench

    torch.set_num_threads(threads)
    sys.argv = list(command)
    run, place = shard.run, Place.of(suite.out)
    place.take(shard.folder)
    try:
        bench(
            run.method,
            run.task,
            backbone=run.backbone,
            context=run.context,
            seed=run.seed,
            limit=suite.limit if shard.examples is None else shard.examples.stop,
            first=None if shard.examples is None else shard.examples.start,
            data=suite.data,
            out=place.folder / shard.store,
            device=suite.device,
            dtype=suite.dtype,
            quantise=suite.quantise,
            batch=suite.batch,
            counting=suite.count,
            progress=False,
        )
    finally:
        if (place.folder / shard.folder).is_dir():
            place.give(shard.folder)


def _begun(place: Place, run: SweepRun) -> list[range]:
    """The ranges of the stored shards of a run, finished or not, within its examples and apart from each other."""
    ranges: list[range] = []
    for name in place.below(SHARDS):
        examples = _range(name)
        if examples is None or run.run_id not in place.below(f"{SHARDS}/{name}") or examples.stop > run.examples:
            continue
        if not any(set(examples) & set(other) for other in ranges):
            ranges.append(examples)
    return ranges


def _range(name: str) -> range | None:
    start, _, stop = name.partition("-")
    return range(int(start), int(stop)) if start.isdecimal() and stop.isdecimal() else None
