"""Checkpoints: all that a run needs to go on as if it had never stopped.

A checkpoint is one folder that is there as a whole or not at all; the one before it is removed when it is there.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
import torch
from pydantic import Field
from torch import Tensor

from contextlab import files, seals, tensors
from contextlab.errors import UserError
from contextlab.training import records
from contextlab.training.loop import Trainer, TrainingProgress

Count = Annotated[int, Field(ge=0, le=2**62)]
Finite = Annotated[float, Field(ge=0, allow_inf_nan=False)]
NAME = re.compile(r"checkpoint-(\d{15})")
LEARNED, OPTIMISER, RUN = "learned.safetensors", "optimiser.safetensors", "run.json"
STEPS = "steps"
_PROGRESS = pydantic.TypeAdapter(TrainingProgress)
_POSITIONS = pydantic.TypeAdapter(list[tuple[Count, Count, Count]])


class Extra(pydantic.BaseModel):
    """What a checkpoint has of a run beside the trainer.

    Attributes:
        course: digest of what is trained on what, see `course.digest`.
        training: settings of the training.
        parts: of an interrupted run, as its card has them.
        curve: lines of the curve.
        curve_sha256: digest of these lines.
        validations: so far.
        best: record of the best weights so far, see `best.BestWeights`.
    """

    model_config = pydantic.ConfigDict(strict=True)

    course: str = ""
    training: dict[str, Any] | None = None
    parts: list[dict[str, Any]] = []
    curve: Count = 0
    curve_sha256: str | None = None
    validations: list[dict[str, Any]] = []
    best: dict[str, Any] | None = None


class _Run(pydantic.BaseModel):
    """`run.json`, written last."""

    model_config = pydantic.ConfigDict(strict=True)

    schema_: Literal[2] = Field(alias="schema")
    processes: Count
    progress: dict[str, Count | Finite]
    extra: Extra
    files: dict[str, str]


def save(out: Path, trainer: Trainer, extra: Extra) -> Path:
    """Write where a run is; called by all of its processes.

    Args:
        out: folder of the run.
        trainer: between two steps.
        extra: what `load` gives back.

    Raises:
        UserError: when it cannot be written.
    """
    processes = trainer.processes
    name = f"checkpoint-{trainer.progress.tokens:015d}"
    partial, whole = out / f".partial-{name}", out / name
    processes.wait()
    if whole.is_dir():
        return whole
    with records.writing(out):
        if processes.first:
            for leftover in out.glob(".partial-*"):
                shutil.rmtree(leftover, ignore_errors=True)
            partial.mkdir(parents=True)
        processes.wait()
        _save_own(partial, trainer)
        processes.wait()
        if processes.first:
            _save_shared(partial, trainer, extra)
            files.rename(partial, whole)
            for older in stored(out):
                if older != whole:
                    # A folder of which some files are left is no checkpoint any more.
                    removed = out / f".partial-{older.name}"
                    files.rename(older, removed)
                    shutil.rmtree(removed, ignore_errors=True)
        processes.wait()
    return whole


def stored(out: Path) -> list[Path]:
    """The whole checkpoints of a run, the newest first."""
    return sorted((folder for folder in out.glob("checkpoint-*") if NAME.fullmatch(folder.name)), reverse=True)


def tokens_of(folder: Path) -> int:
    """Tokens after which a checkpoint was written, by its name."""
    return int(folder.name.rpartition("-")[2])


def read(folder: Path) -> Extra:
    """The extra data of a checkpoint whose files are whole.

    Raises:
        UserError: when one is not.
    """
    return _whole(folder).extra


def load(folder: Path, trainer: Trainer, course: str = "") -> Extra:
    """Set a run to the state of a checkpoint, and return the `extra` that was saved with it.

    Args:
        folder: of the checkpoint.
        trainer: of the run.
        course: of the run that it must belong to.

    Raises:
        UserError: when the checkpoint is broken, or of another run, method, backbone, or number of processes.
    """
    run = _whole(folder)
    if run.extra.course != course:
        raise UserError(f"{folder} belongs to another run: move it away, and the run goes on from what is left.")
    if run.processes != trainer.processes.count:
        raise UserError(
            f"{folder} was written by {run.processes} processes and this run has {trainer.processes.count}: start "
            "as many, or choose another --out."
        )
    trainer.method.load_weights(folder / LEARNED)
    _load_optimiser(_optimiser_file(folder, trainer), trainer)
    rank = trainer.processes.rank
    trainer.state = trainer.method.load_state(folder / f"state-{rank}.safetensors")
    random, _ = tensors.read(folder / f"random-{rank}.safetensors")
    torch.set_rng_state(random["cpu"])
    if "device" in random and trainer.method.backbone.device.type == "cuda":
        torch.cuda.set_rng_state(random["device"], trainer.method.backbone.device)
    try:
        trainer.progress = _PROGRESS.validate_python(run.progress)
        positions = _POSITIONS.validate_json((folder / f"streams-{rank}.json").read_bytes())
    except (OSError, pydantic.ValidationError) as error:
        raise _broken(folder, str(error).partition("\n")[0]) from None
    if not trainer.streams.fits(positions):
        raise _broken(folder, "its streams are not those of this corpus")
    trainer.streams.position = positions
    return run.extra


def _save_own(folder: Path, trainer: Trainer) -> None:
    """The data of a single process: its rows, their states, its draws, and the moments that it keeps."""
    rank, device = trainer.processes.rank, trainer.method.backbone.device
    trainer.state.save(folder / f"state-{rank}.safetensors")
    random = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        random["device"] = torch.cuda.get_rng_state(device)
    tensors.store(folder / f"random-{rank}.safetensors", random)
    files.write(folder / f"streams-{rank}.json", json.dumps(trainer.streams.position))
    tensors.store(_optimiser_file(folder, trainer), _optimiser_tensors(trainer))


def _optimiser_file(folder: Path, trainer: Trainer) -> Path:
    processes = trainer.processes
    return folder / (OPTIMISER if processes.count == 1 else f"{processes.rank}-{OPTIMISER}")


def _save_shared(folder: Path, trainer: Trainer, extra: Extra) -> None:
    trainer.method.save_weights(folder / LEARNED)
    run = {
        "schema": 2,
        "processes": trainer.processes.count,
        "progress": dataclasses.asdict(trainer.progress),
        "extra": extra.model_dump(),
        "files": {file.name: files.sha256(file) for file in sorted(folder.iterdir())},
    }
    seals.write(folder / RUN, run)


def _optimiser_tensors(trainer: Trainer) -> dict[str, Tensor]:
    """The moments and counts of every parameter of this process's that has had a gradient."""
    state = trainer.optimiser.state_dict()["state"]
    moments = {f"{number}.{key}": tensor for number, values in state.items() for key, tensor in values.items()}
    # A file without any tensor is none that can be read.
    return {**moments, STEPS: torch.tensor(trainer.progress.steps)}


def _load_optimiser(path: Path, trainer: Trainer) -> None:
    stored, _ = tensors.read(path)
    state: dict[int, dict[str, Tensor]] = {}
    stored.pop(STEPS, None)
    try:
        for name, tensor in stored.items():
            number, _, key = name.partition(".")
            state.setdefault(int(number), {})[key] = tensor
        groups = trainer.optimiser.state_dict()["param_groups"]
        trainer.optimiser.load_state_dict({"state": state, "param_groups": groups})
        parameters = [parameter for group in trainer.optimiser.param_groups for parameter in group["params"]]
        fits = all(
            moment.shape == parameters[number].shape and bool(moment.isfinite().all())
            for number, values in state.items()
            for moment in (values["exp_avg"], values["exp_avg_sq"])
        )
    except (ValueError, KeyError, IndexError):
        fits = False
    if not fits:
        raise _broken(path.parent, f"{path.name} does not fit what is learned")


def _whole(folder: Path) -> _Run:
    """The run of a checkpoint that has exactly the files that were written, with their content."""
    try:
        run = seals.read(folder / RUN, _Run)
        digests = {file.name: files.sha256(file) for file in folder.iterdir() if file.name != RUN}
    except (OSError, seals.Damaged) as error:
        raise _broken(folder, f"{RUN}: {files.reason(error) if isinstance(error, OSError) else error}") from None
    if changed := sorted({name for name, _ in digests.items() ^ run.files.items()}):
        raise _broken(folder, f"{changed[0]} is not what was written")
    return run


def _broken(folder: Path, reason: str) -> UserError:
    return UserError(f"The checkpoint {folder} is broken ({reason}): delete it, and the run goes on from what is left.")
