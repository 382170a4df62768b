"""The plan of a sweep: its runs, what they cost by formula, and what the machine of its workers can do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import pydantic

from contextlab.benchmarks.task import Control
from contextlab.errors import UserError
from contextlab.harness.stored import Amount, Count, Flops, StoredModel

GIB = 2**30


class RunEstimate(StoredModel):
    """The cost of a run by formula."""

    flops: Flops = pydantic.Field(description="of all examples")
    seconds: Amount = pydantic.Field(description="at the measured rate")


class SweepRun(StoredModel):
    """One run of the grid: the arguments of `bench` that are its own, and what it will need."""

    method: str
    task: str
    backbone: str
    context: Control
    seed: int
    run_id: str
    examples: Count
    estimate: RunEstimate | None = pydantic.Field(description="None where the method has no formula")
    peak_bytes: Count = pydantic.Field(description="of weights, states and their largest call, by formula")

    @property
    def label(self) -> str:
        """The run in a message."""
        return f"{self.method} on {self.task}, {self.backbone}, {self.context}, seed {self.seed}"


class Machine(StoredModel):
    """A machine of the workers."""

    cores: Count
    gpus: Count = pydantic.Field(description="that runs use; 0 where they compute on the processor")
    free_bytes: Count = pydantic.Field(description="memory for runs, of one GPU where there are some")
    process_bytes: Count = pydantic.Field(description="memory of a worker before it has loaded anything")
    flops_per_second: Amount = pydantic.Field(description="of a forward pass of 512 tokens")
    seconds_per_call: Amount = pydantic.Field(description="of a forward pass of one token")


class Survey(StoredModel):
    """The runs of one backbone, and the machine that surveyed them."""

    runs: list[SweepRun]
    machine: Machine


class SweepPlan(StoredModel):
    """All runs of a sweep, and the machine of its workers, which is the slowest that surveyed."""

    schema_: Annotated[Literal[2], pydantic.Field(alias="schema")] = 2
    runs: list[SweepRun]
    machine: Machine

    @classmethod
    def of(cls, surveys: Sequence[Survey]) -> SweepPlan:
        """The plan of all backbones, every run once."""
        runs = {run.run_id: run for survey in surveys for run in survey.runs}
        machine = min((survey.machine for survey in surveys), key=lambda machine: machine.free_bytes)
        return cls(runs=list(runs.values()), machine=machine)

    def run_bytes(self, run: SweepRun) -> int:
        """Memory of a worker with this run."""
        return run.peak_bytes + (0 if self.machine.gpus else self.machine.process_bytes)

    def workers(self, runs: Sequence[SweepRun], most: int | None) -> int:
        """Workers that run any of these at once on one machine: one per GPU, or as many as memory and cores allow.

        Args:
            runs: those that are not stored.
            most: of them; None leaves it to the machine.

        Raises:
            UserError: when not even one run fits.
        """
        largest = max(runs, key=self.run_bytes)
        fit = self.machine.free_bytes // max(self.run_bytes(largest), 1)
        if not fit:
            raise UserError(
                f"{largest.label} needs {self.run_bytes(largest) / GIB:.1f} GiB by formula and "
                f"{self.machine.free_bytes / GIB:.1f} GiB are free: leave it out, or free memory."
            )
        if self.machine.gpus:
            return min(self.machine.gpus, most or self.machine.gpus)
        return min(fit, most or self.machine.cores)
