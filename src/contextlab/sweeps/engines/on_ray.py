"""Ray: tasks on a cluster, an existing one by its address, or one that is started on this machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from contextlab.errors import UserError
from contextlab.sweeps.engines.job import Answer, Engine, Job, Lost, Running, answered
from contextlab.sweeps.plan import SweepPlan, SweepRun

STORE_BYTES = 2**27
"""Memory for objects of a cluster that is started here: answers are small."""


@dataclasses.dataclass(frozen=True)
class _Task(Running):
    future: Future[Answer]

    def done(self) -> bool:
        return self.future.done()

    def answer(self) -> Answer:
        import ray

        try:
            return self.future.result()
        except ray.exceptions.RayTaskError as error:
            raise Lost(f"{type(error.cause).__name__}: {error.cause}") from error
        except ray.exceptions.RayError as error:
            raise Lost(str(error).strip().splitlines()[0].rstrip(".")) from error


class RayEngine(Engine):
    """Hands jobs to Ray, which chooses where they run by the processors, GPUs and memory that they need.

    Args:
        workers: the most at once; as many as the cluster has room for when None.
        settings: arguments of `ray.init`, such as `address`.
    """

    def __init__(self, workers: int | None, settings: Mapping[str, Any]) -> None:
        self.at_once = workers
        try:
            import ray
        except ModuleNotFoundError:
            raise UserError("The engine ray is not installed: pip install 'contextlab[ray]'.") from None
        own = {} if "address" in settings else {"include_dashboard": False, "object_store_memory": STORE_BYTES}
        try:
            ray.init(**{"log_to_driver": False, "logging_level": "ERROR", **own, **settings})
        except (ConnectionError, TypeError, ValueError, RuntimeError) as error:
            why = str(error).strip().splitlines()[0].rstrip(".")
            raise UserError(f"Ray does not start ({why}): correct the settings of --engine.") from error
        self._ray = ray
        self._run = ray.remote(answered)

    def fit(self, plan: SweepPlan, runs: Sequence[SweepRun]) -> None:
        """Nothing: every job says what it needs."""

    def start(self, jobs: Sequence[Job]) -> list[Running]:
        """Start jobs, which wait where the cluster has no room."""
        # A shard is taken up again by the sweep, which knows what is stored of it.
        return [_Task(self._run.options(**self._needs(job), max_retries=0).remote(job).future()) for job in jobs]

    def _needs(self, job: Job) -> dict[str, int | None]:
        gpus = min(int(self._ray.cluster_resources().get("GPU", 0)), 1) if job.gpus is None else job.gpus
        return {"num_cpus": job.threads, "num_gpus": gpus, "memory": job.needed_bytes or None}

    def close(self) -> None:
        """End the tasks, and the cluster where it was started here."""
        self._ray.shutdown()
