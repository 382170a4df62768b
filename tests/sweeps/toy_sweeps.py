"""Small sweeps, and an engine that works in this process."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from contextlab.harness import store
from contextlab.harness.runner import bench
from contextlab.harness.stored import StoredModel
from contextlab.reports.stored import summaries
from contextlab.sweeps import sweep
from contextlab.sweeps.engines import Answer, Engine, Job, Lost, Running, answered
from contextlab.sweeps.places import Place
from contextlab.sweeps.plan import SweepPlan, SweepRun
from contextlab.sweeps.shards import Shard
from contextlab.sweeps.suite import Suite

TOY = Path(__file__).parents[1] / "harness" / "toy_parts.py"
COUNTER, OTHER, LETTERS = (f"{TOY}:{name}" for name in ("Counter", "Other", "Letters"))
IDS = [f"{work}/{n}" for n, work in enumerate("abcdabcd")]


def suite(place: Path | str, **options: Any) -> Suite:
    named = {"method": COUNTER, "task": LETTERS, "backbone": "tiny-llama", "device": "cpu", "out": str(place)}
    return Suite.of(None, named | options)


def without_time(value: Any) -> Any:
    if isinstance(value, StoredModel):
        return without_time(value.as_json())
    if isinstance(value, dict):
        timed = ("seconds", "seconds_spread", "started", "command", "seal", "threads")
        return {key: without_time(item) for key, item in value.items() if key not in timed}
    return [without_time(item) for item in value] if isinstance(value, list) else value


def serial(of: Suite, out: Path) -> None:
    """The runs of a suite, one after the other."""
    for backbone in of.backbone:
        for seed in of.seed:
            options: dict[str, Any] = {"split": of.split, "limit": of.limit, "settings": of.set, "context": of.context}
            bench(of.method, of.task, backbone=backbone, seed=seed, out=out, device=of.device, **options)


def stored(out: Path) -> dict[str, Any]:
    """Results and lines of all runs, without times, in the order of the data."""
    return {
        result.run_id: without_time(
            [result, *sorted(store.lines(out / result.run_id), key=lambda line: line.index)],
        )
        for result in summaries(out)
    }


def assert_once(out: Path) -> None:
    """Every example of every run is stored on one line."""
    for result in summaries(out):
        ids = [line.split('"id": "')[1].split('"')[0] for line in (out / result.run_id / store.LINES).open()]
        assert len(ids) == len(set(ids)) == result.data.examples


@dataclasses.dataclass(frozen=True, eq=False)
class Done(Running):
    work: Callable[[], Answer]

    def done(self) -> bool:
        return True

    def answer(self) -> Answer:
        return self.work()


class Here(Engine):
    """Does every job in this process when its answer is wanted; a worker dies where `dies` says so."""

    def __init__(self, at_once: int | None = 2, dies: Callable[[Shard], bool] = lambda _: False) -> None:
        self.at_once, self.dies = at_once, dies
        self.done: list[Shard] = []

    def fit(self, plan: SweepPlan, runs: Sequence[SweepRun]) -> None:
        pass

    def start(self, jobs: Sequence[Job]) -> list[Running]:
        return [Done(lambda job=job: self._answer(job)) for job in jobs]  # type: ignore[misc]

    def close(self) -> None:
        pass

    def _answer(self, job: Job) -> Answer:
        before = sys.argv
        try:
            shard = job.arguments[1]
            if isinstance(shard, Shard):
                if self.dies(shard):
                    raise Lost("its process ended")
                self.done.append(shard)
            return answered(job)
        finally:
            sys.argv = before


def swept(of: Suite, engine: Engine | None = None, most: int | None = 3) -> SweepPlan:
    """Run a sweep in this process."""
    engine = Here() if engine is None else engine
    with sweep.opened(of, lambda _: engine, most) as running:
        # The plan asks the protocols, too, which tests log and interrupt.
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv("TOY_LOG", raising=False)
            patch.delenv("TOY_INTERRUPT", raising=False)
            plan = running.plan()
        running.run(plan)
    return plan


def place(of: Suite) -> Place:
    return Place.of(of.out)
