"""The search of a learning rate: short trainings, of which the one with the lowest loss on held-back texts counts."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from contextlab.errors import UserError
from contextlab.training.loop import NotFinite
from contextlab.training.options import TrainConfig


def searched(
    settings: TrainConfig, folder: Path, train_once: Callable[..., dict[str, Any]]
) -> tuple[TrainConfig, list[dict[str, Any]], dict[str, Any] | None]:
    """The settings with the rate that is chosen, all trials, and the validation before their first step.

    Args:
        settings: of the training; without a grid they stay as they are.
        folder: of the trials.
        train_once: makes the card of a training from its settings and folder, and `start`, the validation before its
            first step where that is known.

    Raises:
        UserError: when the loss is not finite with any rate.
    """
    trials = list[dict[str, Any]]()
    start: dict[str, Any] | None = None
    for trial in settings.trials:
        tokens: int | None = None
        loss: float | None = None
        with contextlib.suppress(NotFinite):
            card = train_once(trial, folder / f"{trial.lr:g}", start=start)
            start, tokens, loss = card["curve"][0], card["cost"]["tokens"], card["gains"]["loss"]
        trials.append({"lr": trial.lr, "tokens": tokens, "loss": loss})
    losses = {trial["lr"]: trial["loss"] for trial in trials if trial["loss"] is not None}
    if trials and not losses:
        raise UserError(
            f"The loss is not finite with any learning rate of grid={settings.grid}: search among smaller ones."
        )
    if losses:
        settings = dataclasses.replace(settings, lr=min(losses, key=lambda rate: losses[rate]))
    return settings, trials, start
