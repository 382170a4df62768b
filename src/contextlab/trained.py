"""Trained weights by name: which are listed, and what a name, a digest, a method or a backbone finds among them.

Some come with the package; `CONTEXTLAB_WEIGHTS` names further folders, of weights or of folders of weights.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from contextlab import cards
from contextlab.cards import CARD, FILE, Card, Earlier
from contextlab.errors import UserError

METHODS = "contextlab.methods"
"""The entry points of methods, whose names no weights take."""
SHIPPED = Path(__file__).parent / "weights"
FOLDERS = "CONTEXTLAB_WEIGHTS"
CHOICES = ("auto", "none")
"""Values of the setting `weights` that name none."""


@dataclasses.dataclass(frozen=True)
class Trained:
    """Trained weights by their name.

    Attributes:
        name: of their folder, or its path where they are not listed or a method has that name.
        file: of the weights.
        card: beside it.
    """

    name: str
    file: Path
    card: Card

    @property
    def digest(self) -> str:
        """Equal for equal weights: of what was learned, or of the file where an early card does not say it."""
        return self.card.weights.digest or self.card.weights.sha256

    def earlier(self, digest: str | None) -> Earlier | None:
        """The file with this digest from which that of these weights was made; None where it was made from no such."""
        return next((file for file in self.card.earlier if file.digest == digest), None)

    def free(self, otherwise: Collection[str]) -> frozenset[str]:
        """Settings that may differ in use: those that the card says, or `otherwise` where it does not."""
        return frozenset(otherwise if self.card.free is None else self.card.free)

    def differing(self, settings: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
        """Settings of the training that differ in use, by name.

        Args:
            settings: in use.
            defaults: for cards that are older than some settings.
        """
        return _differing({**defaults, **self.card.settings}, settings)

    def changed(self, settings: Mapping[str, Any], defaults: Mapping[str, Any]) -> list[str]:
        """Names of the settings that are not those that the name of the weights stands for."""
        return list(_differing({**defaults, **self.card.named}, settings))


def listed() -> Iterator[Path]:
    """All listed files of weights, those that the environment names first."""
    named = [Path(folder).expanduser() for folder in os.environ.get(FOLDERS, "").split(os.pathsep) if folder]
    for folder in (*named, SHIPPED):
        for path in sorted((*folder.glob(CARD), *folder.glob(f"*/{CARD}"))):
            if (path.parent / FILE).is_file():
                yield path.parent / FILE


def every() -> list[Trained]:
    """All listed weights; those with a broken card are left out."""
    return [Trained(_name(file), file, card) for file in listed() if (card := _card(file)) is not None]


def names() -> list[str]:
    """The names of all listed weights."""
    return [_name(file) for file in listed()]


def find(name: str) -> Trained | None:
    """The listed weights of a name, or those in the folder of a path; None when there are none.

    Raises:
        UserError: when the card is broken, or the name is that of several weights.
    """
    files = [file for file in listed() if file.parent.name == name] or _in_folder(name)
    matches = [Trained(name, file, cards.read(file.parent / CARD)) for file in files]
    # Of one set of weights in more and in fewer bits the first one is meant.
    earlier = {file.digest for weights in matches for file in weights.card.earlier}
    if len({weights.digest for weights in matches} - earlier) > 1:
        where = " and ".join(str(weights.file.parent) for weights in matches)
        raise UserError(f"'{name}' names the weights in {where}: give the path of one of them.")
    return matches[0] if matches else None


def of_file(file: Path, card: Card) -> Trained:
    """The weights of a file, by the name that finds them."""
    own = Trained(str(file.parent), file, card)
    return dataclasses.replace(
        own, name=next((listed.name for listed in every() if listed.digest == own.digest), own.name)
    )


def by_digest() -> dict[str, Trained]:
    """All listed weights by the digest of what was learned, in their files and in earlier ones; the first of equal
    ones."""
    weights = every()[::-1]
    before = {file.digest: encoded for encoded in weights for file in encoded.card.earlier}
    return before | {listed.digest: listed for listed in weights}


def recommendations() -> dict[tuple[str, str], Trained]:
    """The weights that a method's name alone stands for, by that name and the digest of the backbone; the first of
    several."""
    return {(w.card.method, w.card.backbone.digest): w for w in reversed(every()) if w.card.recommended}


def fitting(
    kind: str,
    settings: Mapping[str, Any],
    defaults: Mapping[str, Any],
    free: Collection[str],
    digest: Callable[[], str],
) -> Path | None:
    """The listed weights that fit a method: those with the fewest other settings, then those trained longest, and then
    the first.

    Args:
        kind: name of its class.
        settings: all of them.
        defaults: of its settings, for cards that are older than some of them.
        free: settings that may differ where a card does not say which.
        digest: of the backbone; called only where the rest fits.

    Raises:
        UserError: when a card is broken.
    """
    fits: list[tuple[int, int, Path]] = []
    for file in listed():
        card = cards.read(file.parent / CARD)
        differing = _differing({**defaults, **card.settings}, settings)
        allowed = set(free if card.free is None else card.free)
        if card.kind == kind and differing.keys() <= allowed and card.backbone.digest == digest():
            fits.append((len(differing), -card.cost.tokens, file))
    return min(fits, key=lambda fit: fit[:2])[2] if fits else None


def _differing(trained: Mapping[str, Any], used: Mapping[str, Any]) -> dict[str, Any]:
    """What of the first settings is another in the second ones, as JSON holds them; a missing one is another."""
    first, second = (json.loads(json.dumps(dict(settings), default=str)) for settings in (trained, used))
    names = [name for name in {**first, **second} if name != "weights"]
    return {
        name: first.get(name)
        for name in names
        if name not in first or name not in second or first[name] != second[name]
    }


def _name(file: Path) -> str:
    folder = file.parent
    return str(folder) if folder.name in _taken() else folder.name


@functools.cache
def _taken() -> set[str]:
    return {entry.name for entry in metadata.entry_points(group=METHODS)}


def _in_folder(name: str) -> list[Path]:
    """The file of weights in a folder that a run left."""
    file = Path(name).expanduser() / FILE
    # Path.is_file raises an error where a path is too long.
    return [file] if name and os.path.isfile(file) and os.path.isfile(file.parent / CARD) else []


def _card(file: Path) -> Card | None:
    path = file.parent / CARD
    try:
        stamp = path.stat()
        return _read(path, stamp.st_mtime_ns, stamp.st_size)
    except (OSError, UserError):
        return None


@functools.lru_cache(maxsize=256)
def _read(path: Path, _changed: int, _bytes: int) -> Card:
    return cards.read(path)
