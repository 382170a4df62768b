"""The weights with the lowest loss on held-back texts, in a file beside the last ones."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from contextlab import files
from contextlab.training import checkpoint, records

FILE, WAITING = "best.safetensors", ".best.safetensors"


class BestWeights:
    """Weights that a validation has found best wait under another name until a checkpoint has their digest.

    So a run that is killed in between goes on with the file that its checkpoint knows.

    Attributes:
        record: tokens, loss and sha256 of the weights; None where there are none, or they are lost.

    Args:
        folder: of the run.
    """

    def __init__(self, folder: Path) -> None:
        self.path, self.waiting = folder / FILE, folder / WAITING
        self.record: dict[str, Any] | None = None

    def resume(self, record: dict[str, Any] | None) -> None:
        """Go on with the weights that a checkpoint has the record of, where their file is whole."""
        whole = [path for path in (self.waiting, self.path) if _is(path, record)]
        if whole:
            files.rename(whole[0], self.path)
        self.record = record if whole else None
        self.waiting.unlink(missing_ok=True)

    def keep(self, save: Callable[[Path], None], tokens: int, loss: float) -> None:
        """Write weights with a lower loss than those before; `settle` gives them their name."""
        save(self.waiting)
        self.record = {"tokens": tokens, "loss": loss, "sha256": files.sha256(self.waiting)}

    def settle(self) -> None:
        """Give weights that wait their name, after their record was stored."""
        if self.waiting.exists():
            files.rename(self.waiting, self.path)

    def keep_last(self, last: Path, tokens: int, loss: float) -> None:
        """Keep a copy of the weights with which a run ends."""
        with open(last, "rb") as stream:
            self.keep(functools.partial(files.copy, stream), tokens, loss)
        self.settle()


def is_lost(folder: Path, card: Mapping[str, Any]) -> bool:
    """Whether the best weights that a card names are not there; a run that has gone on since may have better ones."""
    record, written = card.get("best"), records.last_tokens(card) or 0
    goes_on = any(checkpoint.tokens_of(path) > written for path in checkpoint.stored(folder))
    return record is not None and not goes_on and not _is(folder / FILE, record)


def _is(path: Path, record: Mapping[str, Any] | None) -> bool:
    return record is not None and path.is_file() and files.sha256(path) == record["sha256"]
