"""Jobs and their engines: an engine only starts jobs and says how they ended."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from contextlab.errors import UserError
from contextlab.sweeps.plan import SweepPlan, SweepRun


@dataclasses.dataclass(frozen=True)
class Job:
    """A call for a worker, with what it needs.

    Attributes:
        call: a function of a module, which may raise a UserError.
        arguments: that can be pickled.
        threads: processors.
        gpus: 0 or 1; None for one where the engine has some.
        needed_bytes: memory of the worker; 0 where it is unknown.
        seconds: by formula; None where it is unknown.
    """

    call: Callable[..., Any]
    arguments: tuple[Any, ...]
    threads: int = 1
    gpus: int | None = None
    needed_bytes: int = 0
    seconds: float | None = None


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a job returned, or the sentence of its UserError."""

    value: Any = None
    refusal: str | None = None


class Lost(Exception):
    """A worker ended without an answer; the text says what is known of it."""


class Running(Protocol):
    """A job that was started."""

    def done(self) -> bool:
        """Whether it has ended, however it has."""

    def answer(self) -> Answer:
        """Its answer, when it is done.

        Raises:
            Lost: when its worker ended without one.
        """


class Engine(Protocol):
    """Starts jobs.

    Attributes:
        at_once: the most jobs that may be started and not done; None leaves it to the engine.
    """

    at_once: int | None

    def fit(self, plan: SweepPlan, runs: Sequence[SweepRun]) -> None:
        """Choose how many of the runs go at once.

        Raises:
            UserError: when one does not fit.
        """

    def start(self, jobs: Sequence[Job]) -> list[Running]:
        """Start jobs, in any order."""

    def close(self) -> None:
        """End all workers, also those with a job."""


def answered(job: Job) -> Answer:
    """The answer to a job, in the process of a worker."""
    try:
        return Answer(job.call(*job.arguments))
    except UserError as error:
        return Answer(refusal=str(error))
