"""Trained weights in files: their cards, what they fit, and the folders they are searched in.

A folder of trained weights holds `weights.safetensors` and `card.json`. Some come with the package;
`CONTEXTLAB_WEIGHTS` names further folders, of weights or of folders of weights.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic import Field

from contextlab import files
from contextlab.errors import UserError

FILE, CARD = "weights.safetensors", "card.json"
SHIPPED = Path(__file__).parent / "weights"
FOLDERS = "CONTEXTLAB_WEIGHTS"

Count = Annotated[int, Field(ge=0, le=2**100)]


class _Part(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow", frozen=True)


class Cost(_Part):
    """What the training cost."""

    flops: Count | None
    peak_bytes: Count | None = None
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    tokens: Count


class Backbone(_Part):
    """Beside which backbone it was."""

    name: str
    digest: str


class Weights(_Part):
    """The file of the weights."""

    sha256: str
    bytes: Count


class Card(_Part):
    """What a method learned; further fields are kept as they are."""

    schema_: Literal[1] = Field(alias="schema")
    method: str
    kind: str
    label: str
    settings: dict[str, Any]
    backbone: Backbone
    weights: Weights
    cost: Cost


def read(path: Path) -> Card:
    """The card of a file.

    Raises:
        UserError: when it cannot be read, or is none.
    """
    try:
        return Card.model_validate(json.loads(path.read_text("utf-8")))
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        reason = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    except (OSError, ValueError, RecursionError) as error:
        reason = str(error).partition("\n")[0]
    raise UserError(f"{path} is no card of trained weights ({reason}): delete it, or train again.")


def weights_file(path: Path | str) -> Path:
    """The file of weights that a path names: itself, or the one in a folder that `contextlab train` wrote."""
    path = Path(path)
    # Path.is_dir raises an error where a path is too long.
    return path / FILE if os.path.isdir(path) else path


def beside(weights: Path) -> Card | None:
    """The card of a file of weights; None when there is none beside it, or it is of another file.

    Raises:
        UserError: when the card is broken.
    """
    path = weights.parent / CARD
    if weights.name != FILE or not path.is_file() or not weights.is_file():
        return None
    card = read(path)
    return card if files.sha256(weights) == card.weights.sha256 else None


def listed() -> Iterator[Path]:
    """All listed files of weights, those that the environment names first."""
    named = [Path(folder).expanduser() for folder in os.environ.get(FOLDERS, "").split(os.pathsep) if folder]
    for folder in (*named, SHIPPED):
        for path in sorted((*folder.glob(CARD), *folder.glob(f"*/{CARD}"))):
            if (path.parent / FILE).is_file():
                yield path.parent / FILE


def fitting(
    kind: str,
    settings: Mapping[str, Any],
    defaults: Mapping[str, Any],
    free: Collection[str],
    digest: Callable[[], str],
) -> Path | None:
    """The listed weights that fit a method, those trained longest where several do.

    Args:
        kind: name of its class.
        settings: all of them.
        defaults: of its settings, for cards that are older than some of them.
        free: settings that weights do not depend on.
        digest: of the backbone; called only where the rest fits.

    Raises:
        UserError: when a card is broken.
    """
    free = {*free, "weights"}
    wanted = _comparable(settings, free)
    fits: list[tuple[int, Path]] = []
    for weights in listed():
        card = read(weights.parent / CARD)
        if (
            card.kind == kind
            and _comparable({**defaults, **card.settings}, free) == wanted
            and card.backbone.digest == digest()
        ):
            fits.append((-card.cost.tokens, weights))
    return min(fits)[1] if fits else None


def _comparable(settings: Mapping[str, Any], free: Collection[str]) -> dict[str, Any]:
    """Settings as JSON holds them, without those that do not count."""
    kept = {name: value for name, value in settings.items() if name not in free}
    plain: dict[str, Any] = json.loads(json.dumps(kept, default=str))
    return plain


def short_count(count: int) -> str:
    """A number of tokens in a few characters: 950, 8.2k, 200k, 1.2M."""
    for size, letter in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= size:
            return f"{count / size:.3g}{letter}" if count < 100 * size else f"{count / size:.0f}{letter}"
    return str(count)
