"""How far a sweep is, from the files of its place alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Literal

from contextlab import locks, seals
from contextlab.errors import UserError
from contextlab.harness import store
from contextlab.sweeps.places import HIDDEN, SHARDS, Place
from contextlab.sweeps.plan import SweepPlan, SweepRun
from contextlab.sweeps.shards import is_stored

PLAN = f"{HIDDEN}/plan.json"
State = Literal["stored", "running", "begun", "waiting"]


@dataclasses.dataclass(frozen=True)
class RunStatus:
    """How far one run is.

    Attributes:
        run: the run.
        state: `running` while a worker holds it, `begun` where it has examples and no worker.
        finished: examples that are stored.
    """

    run: SweepRun
    state: State
    finished: int


def read_plan(place: Place, *, of_suite: bool = False) -> SweepPlan:
    """The plan of the last sweep into a place.

    Args:
        place: where the sweep is stored.
        of_suite: whether the file of a suite names the place.

    Raises:
        UserError: when there is none, or its file is broken.
    """
    try:
        return seals.read(place.take_file(PLAN), SweepPlan)
    except FileNotFoundError:
        if of_suite:
            raise UserError(f"The sweep into {place.folder} has not begun: run it without --status.") from None
        raise UserError(f"There is no sweep in {place.folder}: name its folder with --out.") from None
    except seals.Damaged as damaged:
        raise UserError(f"{place.folder / PLAN} is broken ({damaged}): start the sweep again.") from None


def statuses(place: Place, plan: SweepPlan) -> list[RunStatus]:
    """How far every run of a plan is."""
    active = locks.is_held(place.folder / HIDDEN)
    shards = [f"{SHARDS}/{name}/" for name in place.below(SHARDS)]
    return [_status(place, run, shards, active) for run in plan.runs]


def _status(place: Place, run: SweepRun, shards: Iterable[str], active: bool) -> RunStatus:
    if is_stored(place, run):
        return RunStatus(run, "stored", run.examples)
    folders = [place.folder / f"{part}{run.run_id}" for part in ("", *shards)]
    finished = min(sum((store.content(folder) or b"").count(b"\n") for folder in folders), run.examples)
    # A killed worker leaves its lock until another one takes it.
    if active and any((folder / locks.NAME).exists() for folder in folders):
        return RunStatus(run, "running", finished)
    return RunStatus(run, "begun" if finished else "waiting", finished)
