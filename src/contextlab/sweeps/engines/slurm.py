"""Slurm: array jobs by submitit."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from contextlab.errors import UserError
from contextlab.sweeps.engines.job import Answer, Engine, Job, Lost, Running, answered
from contextlab.sweeps.plan import GIB, SweepPlan, SweepRun

RULE = "-" * 22
HOURS = 24.0
"""Time limit of a job whose time is unknown."""
TIMES = 4.0
"""A job may take so many times longer than planned, and a quarter of an hour for its start."""


@dataclasses.dataclass(frozen=True)
class _Submitted(Running):
    job: Any

    def done(self) -> bool:
        return bool(self.job.done())

    def answer(self) -> Answer:
        try:
            answer: Answer = self.job.result()
        except Exception as error:
            # Submitit shows the worker's error between two rules, or says in its first line that there is none.
            shown = str(error).split(RULE)
            why = shown[1].strip().splitlines()[-1] if len(shown) > 1 else str(error).strip().splitlines()[0]
            raise Lost(f"job {self.job.job_id}: {why.rstrip('.')}") from error
        return answer


class SlurmEngine(Engine):
    """Submits jobs.

    Args:
        workers: the most at once; as many as Slurm starts when None.
        settings: parameters of submitit's executor, such as `slurm_partition`; `cluster=local` runs on this machine.
        folder: for scripts and logs, which all machines see.
    """

    def __init__(self, workers: int | None, settings: Mapping[str, Any], folder: Path) -> None:
        try:
            import submitit
        except ModuleNotFoundError:
            raise UserError("The engine slurm is not installed: pip install 'contextlab[slurm]'.") from None
        self._settings = dict(settings)
        cluster = self._settings.pop("cluster", None)
        self._local = cluster == "local"
        try:
            self._executor = submitit.AutoExecutor(folder, cluster=cluster)
            self._executor.update_parameters(**self._settings)
        except (NameError, RuntimeError, ValueError) as error:
            why = str(error).strip().splitlines()[0].rstrip(".")
            raise UserError(f"Slurm cannot be used ({why}): correct the settings of --engine.") from error
        self._workers = workers
        # Slurm itself starts no more tasks of an array at once than it is told.
        self.at_once = (workers or 1) if self._local else None
        self._jobs: list[Any] = []

    def fit(self, plan: SweepPlan, runs: Sequence[SweepRun]) -> None:
        """On this machine no more than memory allows; elsewhere every job says what it needs."""
        if self._local:
            self.at_once = plan.workers(runs, self._workers)

    def start(self, jobs: Sequence[Job]) -> list[Running]:
        """Submit jobs as one array, with the needs of the largest."""
        seconds = [TIMES * job.seconds + 900 if job.seconds is not None else 3600 * HOURS for job in jobs]
        needs: dict[str, Any] = {
            "timeout_min": math.ceil(max(seconds) / 60),
            "cpus_per_task": max(job.threads for job in jobs),
            "gpus_per_node": max((job.gpus for job in jobs if job.gpus is not None), default=None),
            "mem_gb": max(job.needed_bytes for job in jobs) / GIB or None,
            "slurm_array_parallelism": self._workers or len(jobs),
        }
        parameters = {name: value for name, value in needs.items() if value is not None}
        self._executor.update_parameters(**{**parameters, **self._settings})
        with _interruptible(), self._executor.batch():
            submitted = [self._executor.submit(answered, job) for job in jobs]
        self._jobs += submitted
        return [_Submitted(job) for job in submitted]

    def close(self) -> None:
        """Cancel what has not ended."""
        for job in self._jobs:
            if not job.done():
                job.cancel()
        self._jobs = []


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """While entered, processes that are started can be interrupted, which is how submitit cancels a local job.

    A shell lets its background commands ignore interrupts, and what they start inherits this, unlike a handler.
    """
    in_main = threading.current_thread() is threading.main_thread()
    ignored = in_main and signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    if ignored:
        signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        if ignored:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
