"""Trained weights in files, and their cards: a folder holds `weights.safetensors` and `card.json`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic import Field

from contextlab import files, seals
from contextlab.errors import UserError

FILE, CARD = "weights.safetensors", "card.json"

Count = Annotated[int, Field(ge=0, le=2**100)]


class _Part(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow", frozen=True)


class TrainingCost(_Part):
    """What the training cost."""

    flops: Count | None
    peak_bytes: Count | None = None
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    tokens: Count


class CardBackbone(_Part):
    """Beside which backbone it was."""

    name: str
    digest: str


class WeightsFile(_Part):
    """The file of the weights."""

    sha256: str
    bytes: Count
    digest: str | None = None
    dtype: str | None = None


class Earlier(_Part):
    """A file from which a smaller one with the same weights was made.

    Attributes:
        dtype: of its numbers.
        difference: nats per token by which the loss on held-back texts is higher with the smaller file.
    """

    sha256: str
    digest: str
    bytes: Count
    dtype: str
    difference: Annotated[float, Field(allow_inf_nan=False)]


class Card(_Part):
    """What a method learned; further fields are kept as they are.

    Attributes:
        settings: of the training.
        free: settings that may differ in use; those that the method's configuration says, in a card without this field.
        use: settings that the name of these weights stands for where they are not those of the training.
        recommended: whether the method's name alone stands for these weights, on their backbone.
        earlier: files from which that of the weights was made by storing them in fewer bits.
    """

    schema_: Literal[1, 2] = Field(alias="schema")
    method: str
    kind: str
    label: str
    settings: dict[str, Any]
    backbone: CardBackbone
    weights: WeightsFile
    cost: TrainingCost
    free: tuple[str, ...] | None = None
    use: dict[str, Any] = {}
    recommended: bool = False
    earlier: tuple[Earlier, ...] = ()

    @property
    def named(self) -> dict[str, Any]:
        """The settings that the name of these weights stands for."""
        return {**self.settings, **self.use}


def read(path: Path) -> Card:
    """The card of a file.

    Raises:
        UserError: when it cannot be read, or is none.
    """
    try:
        return seals.read(path, Card)
    except FileNotFoundError:
        reason = "there is no such file"
    except seals.Damaged as damaged:
        reason = str(damaged)
    raise UserError(f"{path} is no card of trained weights ({reason}): put the intact file back, or train again.")


def weights_file(path: Path | str) -> Path:
    """The file of weights that a path names: itself, or the one in a folder that `contextlab train` wrote."""
    path = Path(path)
    # Path.is_dir raises an error where a path is too long.
    return path / FILE if os.path.isdir(path) else path


def beside(weights: Path) -> Card | None:
    """The card of a file of weights, which it fits; None when there is none beside it.

    Raises:
        UserError: when the card is broken, or the file is not the one that it describes.
    """
    path = weights.parent / CARD
    if weights.name != FILE or not path.is_file() or not weights.is_file():
        return None
    card = read(path)
    if files.sha256(weights) != card.weights.sha256:
        raise UserError(
            f"{weights} is not the file that {CARD} beside it describes (its sha256 differs): put the intact file "
            "back, or train again."
        )
    return card


def short_count(count: int) -> str:
    """A number of tokens in a few characters: 950, 8.2k, 200k, 1.2M."""
    for size, letter in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= size:
            return f"{count / size:.3g}{letter}" if count < 100 * size else f"{count / size:.0f}{letter}"
    return str(count)
