"""Engines: who runs the jobs of a sweep. An engine only starts jobs and says how they ended."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from contextlab import grammar
from contextlab.errors import UserError, unknown
from contextlab.sweeps.plan import Plan, PlannedRun

ENGINES = ("local", "ray", "slurm")


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

    def fit(self, plan: Plan, runs: Sequence[PlannedRun]) -> None:
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


def engine(text: str, workers: int | None, folder: Path) -> Engine:
    """The engine that a text names, with its settings in brackets, as `ray(address=auto)`.

    Args:
        text: one of `ENGINES`.
        workers: the most jobs at once; the engine's choice when None.
        folder: where it may keep files of its own.

    Raises:
        UserError: for another name, a setting that it does not have, or a package that is missing.
    """
    item = grammar.single(text, "engine")
    settings = {name: _plain(value) for name, value in item.settings.items()}
    if item.name == "local":
        from contextlab.sweeps.engines.local import LocalEngine

        if settings:
            raise UserError(f"The engine local has no settings: leave {next(iter(settings))} out.")
        return LocalEngine(workers)
    if item.name == "ray":
        from contextlab.sweeps.engines.on_ray import RayEngine

        return RayEngine(workers, settings)
    if item.name == "slurm":
        from contextlab.sweeps.engines.slurm import SlurmEngine

        return SlurmEngine(workers, settings, folder)
    raise unknown("engine", item.name, ENGINES)


def _plain(value: object) -> object:
    """A number or a truth value where a text spells one."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value
