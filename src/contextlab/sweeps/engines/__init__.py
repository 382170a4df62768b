"""Engines: who runs the jobs of a sweep."""

from __future__ import annotations

import json
from pathlib import Path

from contextlab import grammar
from contextlab.errors import UserError, unknown
from contextlab.sweeps.engines.job import Answer, Engine, Job, Lost, Running, answered

__all__ = ["ENGINES", "Answer", "Engine", "Job", "Lost", "Running", "answered", "engine"]

ENGINES = ("local", "ray", "slurm")


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
