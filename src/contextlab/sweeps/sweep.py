"""The loop of a sweep: what is not stored goes to workers, and what they have finished is merged."""

from __future__ import annotations

import collections
import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from contextlab import files, locks, seals
from contextlab.errors import UserError
from contextlab.sweeps.engines import Engine, Job, Lost, Running
from contextlab.sweeps.merge import merge
from contextlab.sweeps.places import HIDDEN, REMEDY, Place
from contextlab.sweeps.plan import Survey, SweepPlan, SweepRun
from contextlab.sweeps.shards import Shard, is_stored, most_examples, shards_of, work
from contextlab.sweeps.status import PLAN
from contextlab.sweeps.suite import Suite
from contextlab.sweeps.survey import survey

ATTEMPTS = 3
"""Workers that may die with the same shard."""
PAUSE = 0.1
"""Seconds between two looks at the workers."""


class Sweep:
    """One sweep that this process alone works on.

    Args:
        suite: what to run.
        place: where its runs are stored.
        engine: who runs them.
        most: examples of a shard; as many as take ten minutes when None.

    Attributes:
        failed: sentences of runs that could not be stored.
    """

    def __init__(self, suite: Suite, place: Place, engine: Engine, most: int | None = None) -> None:
        self.suite, self.place, self.engine = suite, place, engine
        self.failed: dict[str, str] = {}
        self._most = most
        self._waiting: collections.deque[Shard] = collections.deque()
        self._running: dict[Running, Shard] = {}
        self._parts: dict[str, int] = {}
        self._finished: dict[str, list[Shard]] = collections.defaultdict(list)
        self._deaths: collections.Counter[str] = collections.Counter()
        self._threads, self._gpus = 1, 0

    def plan(self) -> SweepPlan:
        """The plan of the suite, which a worker makes for every backbone: only it knows its machine.

        Raises:
            UserError: as `bench`, before anything is run.
        """
        gpus = 0 if self.suite.device == "cpu" else None
        jobs = [Job(survey, (self.suite, backbone), gpus=gpus) for backbone in self.suite.backbone]
        surveys: list[Survey] = []
        for job in jobs:
            (running,) = self.engine.start([job])
            while not running.done():
                time.sleep(PAUSE)
            try:
                answer = running.answer()
            except Lost as lost:
                raise UserError(f"The sweep cannot be planned ({lost}): run its first run with bench.") from None
            if answer.refusal is not None:
                raise UserError(answer.refusal)
            surveys.append(answer.value)
        return SweepPlan.of(surveys)

    def run(self, plan: SweepPlan, show: Callable[[], None] = lambda: None) -> None:
        """Run what is not stored yet; one run that fails leaves the others alone.

        Args:
            plan: of the suite.
            show: called between two looks at the workers.

        Raises:
            UserError: at the end, when a run could not be stored.
        """
        with files.writing(self.place.folder / PLAN, REMEDY):
            seals.write(self.place.folder / PLAN, plan.as_json())
        self.place.give(PLAN)
        missing = [run for run in plan.runs if not is_stored(self.place, run)]
        if missing:
            self.engine.fit(plan, missing)
        self._threads, self._gpus = _threads(plan, self.engine.at_once), min(plan.machine.gpus, 1)
        for run in missing:
            most = self._most or most_examples(run, self.engine.at_once or 1)
            shards = shards_of(self.place, run, most)
            self._parts[run.run_id] = sum(shard.examples is not None for shard in shards)
            self._waiting.extend(shards)
        while self._waiting or self._running:
            self._start(plan)
            for running in [running for running in self._running if running.done()]:
                self._ended(running, self._running.pop(running))
            show()
            time.sleep(PAUSE)
        if self.failed:
            first, failed, runs = next(iter(self.failed.values())), len(self.failed), len(plan.runs)
            which = f"{failed} of {runs} runs are not stored, the others are" if failed < runs else "No run is stored"
            raise UserError(f"{which}: {first.rstrip('.')}; then run the same command again to resume.")

    def _start(self, plan: SweepPlan) -> None:
        """Hand out as many shards as may be started at once."""
        at_once = self.engine.at_once
        count = len(self._waiting) if at_once is None else min(at_once - len(self._running), len(self._waiting))
        shards = [self._waiting.popleft() for _ in range(count)]
        if shards:
            started = self.engine.start([self._job(plan, shard) for shard in shards])
            self._running |= dict(zip(started, shards, strict=True))

    def _job(self, plan: SweepPlan, shard: Shard) -> Job:
        run, seconds = shard.run, None
        if run.estimate is not None:
            share = len(shard.examples) / run.examples if shard.examples is not None else 1.0
            seconds = share * run.estimate.seconds
        arguments = self.suite, shard, self._threads, sys.argv
        return Job(work, arguments, self._threads, self._gpus, plan.run_bytes(run), seconds)

    def _ended(self, running: Running, shard: Shard) -> None:
        """Take the answer of a worker: what a dead one leaves is the next one's."""
        run = shard.run
        try:
            refusal = running.answer().refusal
            if refusal is None:
                self._finished[run.run_id].append(shard)
                self._finish(run)
                return
        except Lost as lost:
            self._deaths[shard.folder] += 1
            if self._deaths[shard.folder] < ATTEMPTS:
                self._waiting.appendleft(shard)
                return
            refusal = f"{ATTEMPTS} workers ended with {run.label} ({lost}): try it alone with bench"
        except UserError as error:
            refusal = str(error)
        self.failed.setdefault(run.run_id, refusal)

    def _finish(self, run: SweepRun) -> None:
        """Merge the shards of a run when all are finished; what they owe is left to the ordinary runner."""
        finished, whole = self._finished[run.run_id], Shard(run)
        parts = [shard for shard in finished if shard != whole]
        if len(parts) < self._parts[run.run_id]:
            return
        if whole in finished and not is_stored(self.place, run):
            raise UserError(f"{run.label} became another run than the planned one, as where a file was changed since")
        if parts and whole not in finished and not merge(self.place, run, parts):
            self._waiting.appendleft(whole)
            return
        for shard in parts:
            self.place.remove(shard.folder)


@contextlib.contextmanager
def opened(suite: Suite, engine: Callable[[Path], Engine], most: int | None = None) -> Iterator[Sweep]:
    """A sweep into a place that no other one works on; when the block ends, however it does, all its workers end.

    Args:
        suite: what to run.
        engine: makes the engine, which may keep files in a folder.
        most: examples of a shard.

    Raises:
        UserError: when the place cannot be written, or another sweep works on it.
    """
    place = Place.of(suite.out)
    hidden = place.folder / HIDDEN
    with contextlib.ExitStack() as stack:
        stack.callback(_remove_empty, place.folder)
        with files.writing(hidden, REMEDY):
            stack.enter_context(locks.alone(hidden, f"Another sweep runs into {suite.out}: wait for it, or end it."))
        using = engine(hidden / "jobs")
        stack.callback(using.close)
        yield Sweep(suite, place, using, most)


def _remove_empty(folder: Path) -> None:
    """Leave no folder of a sweep that was refused."""
    with contextlib.suppress(OSError):
        folder.rmdir()


def _threads(plan: SweepPlan, at_once: int | None) -> int:
    """Threads of a worker: what the user has set, or its share of the processors."""
    own = os.environ.get("OMP_NUM_THREADS", "")
    if own.isdecimal() and int(own):
        return int(own)
    return max(plan.machine.cores // at_once, 1) if at_once else 1
