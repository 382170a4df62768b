"""Curves of a training in TensorBoard, beside the file that holds them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from contextlab.errors import UserError

FOLDER = "tensorboard"


def board(log: str, out: Path, tokens: int, *, first: bool) -> Callable[[Mapping[str, Any]], None]:
    """What takes every line of a curve; it shows none with `log=none`, or in further processes.

    Args:
        log: setting of the run.
        out: folder of the run.
        tokens: learned from so far; what an interrupted run has shown after them is taken back.
        first: whether this process writes files.

    Raises:
        UserError: when TensorBoard is not installed.
    """
    if log == "none" or not first:
        return _nowhere
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError("log=tensorboard needs contextlab[tensorboard]: install it, or leave log out.") from None
    writer: Any = SummaryWriter(str(out / FOLDER), purge_step=tokens + 1 if tokens else None)

    def show(line: Mapping[str, Any]) -> None:
        values = {**line, **{f"validation/{name}": value for name, value in line.get("validation", {}).items()}}
        for name, value in values.items():
            if name != "tokens" and isinstance(value, int | float):
                writer.add_scalar(name, value, line["tokens"])
        writer.flush()

    return show


def _nowhere(line: Mapping[str, Any]) -> None:
    """Shows nothing."""
