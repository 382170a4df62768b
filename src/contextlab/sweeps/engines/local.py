"""Processes on this machine: each with one GPU, where there are some, or a share of the processors."""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import os
import signal
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from contextlab.sweeps.engines.job import Answer, Engine, Job, Lost, Running, answered
from contextlab.sweeps.plan import SweepPlan, SweepRun


@dataclasses.dataclass(frozen=True)
class _Started(Running):
    future: Future[Answer]

    def done(self) -> bool:
        return self.future.done()

    def answer(self) -> Answer:
        try:
            return self.future.result()
        except BrokenProcessPool:
            raise Lost("its process ended, as by a signal or for want of memory") from None
        except Exception as error:
            raise Lost(f"{type(error).__name__}: {error}") from error


class _Slot:
    """A process that does one job after another; a new one takes the place of one that died or failed."""

    def __init__(self, gpu: int | None) -> None:
        self._gpu = gpu
        self._pool: ProcessPoolExecutor | None = None
        self._process: Future[int] | None = None
        self._job: Future[Answer] | None = None

    @property
    def free(self) -> bool:
        """Whether it has nothing to do."""
        return self._job is None or self._job.done()

    def start(self, job: Job) -> Running:
        """Start a job."""
        if self._job is not None and self._job.exception() is not None:
            self.close()
        try:
            self._job = self._opened(job.threads).submit(answered, job)
        except BrokenProcessPool:
            # It died while it had nothing to do.
            self.close()
            self._job = self._opened(job.threads).submit(answered, job)
        return _Started(self._job)

    def _opened(self, threads: int) -> ProcessPoolExecutor:
        if self._pool is None:
            # A process of its own for every slot: when one dies, `concurrent.futures` gives up the whole pool.
            spawned = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(1, spawned, initializer=_begin, initargs=(self._gpu, threads))
            self._process = self._pool.submit(os.getpid)
        return self._pool

    def close(self) -> None:
        """End its process, also in the middle of a job: what the job has finished is stored."""
        if self._pool is not None:
            if self._process is not None and self._process.done() and not self.free:
                with contextlib.suppress(ProcessLookupError, BrokenProcessPool):
                    os.kill(self._process.result(), signal.SIGKILL)
            self._pool.shutdown(cancel_futures=True)
        self._pool, self._process, self._job = None, None, None


class LocalEngine(Engine):
    """Starts processes on this machine.

    Args:
        workers: the most at once; as many as the plan allows when None.
    """

    def __init__(self, workers: int | None = None) -> None:
        self.at_once: int | None = 1
        self._workers = workers
        self._slots = [_Slot(None)]

    def fit(self, plan: SweepPlan, runs: Sequence[SweepRun]) -> None:
        """As many as memory and GPUs allow."""
        self.close()
        self.at_once = plan.workers(runs, self._workers)
        self._slots = [_Slot(number if plan.machine.gpus else None) for number in range(self.at_once)]

    def start(self, jobs: Sequence[Job]) -> list[Running]:
        """Start jobs in free processes, of which there are enough."""
        return [next(slot for slot in self._slots if slot.free).start(job) for job in jobs]

    def close(self) -> None:
        """End all processes."""
        for slot in self._slots:
            slot.close()


def _begin(gpu: int | None, threads: int) -> None:
    """Make a process a worker: with its GPU and threads, deaf to Ctrl-C, and gone when its parent is."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    if gpu is not None:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        os.environ["CUDA_VISIBLE_DEVICES"] = visible.split(",")[gpu] if visible else str(gpu)
    threading.Thread(target=_follow, daemon=True).start()


def _follow() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
