"""The identity of a run: what is trained on what and how, which is the same in every command that continues it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from contextlab.errors import UserError
from contextlab.harness import store
from contextlab.method import AnyMethod
from contextlab.training import records
from contextlab.training.corpus import Corpus
from contextlab.training.options import TrainConfig


def of(name: str, method: AnyMethod, corpus: Corpus, held_back: Corpus, settings: TrainConfig) -> dict[str, Any]:
    """What `run.json` holds.

    Args:
        name: of the method.
        method: that is trained.
        corpus: that it is trained on.
        held_back: that validation reads, which may be the same.
        settings: of the training.
    """
    return {
        "schema": 2,
        "method": name,
        "settings": {name: _plain(value) for name, value in method.config.as_dict().items()},
        "backbone": method.backbone.digest,
        "corpus": corpus.key,
        "training": settings.as_dict(),
        **({} if held_back is corpus else {"validation": held_back.key}),
    }


def digest(about: Mapping[str, Any]) -> str:
    """A digest of what is trained on what, which a run and its checkpoints have in common."""
    return store.digest({name: part for name, part in about.items() if name != "training"})


def matched(path: Path, about: Mapping[str, Any], settings: TrainConfig) -> dict[str, Any] | None:
    """The run that a file describes, None where there is no such file.

    Args:
        path: of the file.
        about: of the run that it must describe.
        settings: of this run.

    Raises:
        UserError: when it describes another run.
    """
    stored = records.read(path)
    if stored is None:
        return None
    if not isinstance(stored.get("training"), dict):
        raise UserError(f"{path} says nothing of the training: delete it, or choose another --out.")
    for part in ("method", "settings", "backbone", "corpus", "validation"):
        if stored.get(part) != about.get(part):
            raise UserError(f"{path.parent} holds a run with another {part}: choose another --out, or the same {part}.")
    check(path.parent, settings, stored["training"])
    return stored


def check(out: Path, settings: TrainConfig, training: Mapping[str, Any]) -> None:
    """Refuse settings with which a run would go on otherwise than it was begun.

    Args:
        out: folder of the run.
        settings: with which it is to go on.
        training: settings with which it was begun.

    Raises:
        UserError: which names the first that differs.
    """
    other = settings.same_course(training)
    if other == "tokens":
        raise UserError(_other_length(out, settings, training["tokens"]))
    if other is not None:
        raise UserError(
            f"{out} holds a run with {other}={training.get(other)}: choose another --out, or the same {other}."
        )


def _other_length(out: Path, settings: TrainConfig, tokens: int) -> str:
    """The advice where the learning rate of a run depends on its length, and another length is asked for."""
    falls = f"schedule={settings.schedule}" if settings.schedule != "constant" else f"warmup={settings.warmup}"
    return (
        f"{out} holds a run with tokens={tokens}, whose learning rate depends on its length ({falls}): finish "
        f"it with --tokens {tokens}, and begin another run with another --out and the method's setting "
        f"weights={out}; only a run that began with --set schedule=constant --set warmup=0 can be made longer."
    )


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else list(value) if isinstance(value, tuple) else value
