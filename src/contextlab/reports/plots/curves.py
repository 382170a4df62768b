"""The picture of trainings: the loss on the way, and what the own history gives on held-back documents."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from contextlab import seals
from contextlab.cards import CARD
from contextlab.errors import UserError
from contextlab.reports.filters import LeftOut
from contextlab.reports.names import Names
from contextlab.reports.plots import picture
from contextlab.reports.plots.chosen import PictureOptions, named, unique_titles
from contextlab.reports.plots.picture import Axis, Guide, Panel, Picture, Place, Series
from contextlab.training import records

CURVE = "curve.jsonl"
MOST = 60
"""Points of a curve; losses of longer ones are averaged."""


@dataclasses.dataclass(frozen=True)
class Training:
    """The curve of a training.

    Attributes:
        label: the method with its settings, or the folder where no card is written yet.
        method: registered name; empty without a card.
        losses: tokens and nats per token of the steps.
        validations: tokens and the fields of a validation.
    """

    label: str
    method: str
    losses: tuple[tuple[float, float], ...]
    validations: tuple[tuple[float, dict[str, Any]], ...]


def trainings(folders: Iterable[Path]) -> list[Training]:
    """All trainings in or below folders.

    Raises:
        UserError: when there are none, or a file is broken.
    """
    paths: dict[Path, None] = {}
    for folder in folders:
        for name in (CURVE, CARD):
            paths |= dict.fromkeys(path.parent for path in sorted(folder.rglob(name)))
    if not paths:
        raise UserError("There is no training in these folders: name what `contextlab train` wrote with --out.")
    return [_read(path) for path in paths]


def training(folders: Iterable[Path], options: PictureOptions) -> Picture:
    """Losses, and the content gain of the validations, against the tokens that were learned from.

    Raises:
        UserError: as `trainings`.
    """
    curves = trainings(folders)
    labels = _labels(curves, options.names)
    last = [curve.validations[-1][1]["loss"] if curve.validations else math.inf for curve in curves]
    order = sorted(range(len(curves)), key=last.__getitem__)
    best = [(labels[n], curves[n].method or labels[n]) for n in order]
    chosen = set(named(best, options))
    losses, held_back, gains = [], [], []
    for label, course in zip(labels, curves, strict=True):
        about: dict[str, Any] = {"form": course.label, "line": True, "quiet": label not in chosen}
        if course.losses:
            x, y = zip(*_averaged(course.losses), strict=True)
            losses.append(Series(label, course.method, x, y, **about))
        if course.validations:
            x = tuple(tokens for tokens, _ in course.validations)
            held_back.append(Series(label, course.method, x, tuple(v["loss"] for _, v in course.validations), **about))
            y = tuple(v["content_gain"] for _, v in course.validations)
            bars = tuple(_bar(v["content_gain"], v["content_error"]) for _, v in course.validations)
            shown = bars if any(bars) and label in chosen else ()
            gains.append(Series(label, course.method, x, y, intervals=shown, **about))
    tokens = Axis("tokens learned from")
    zero = (Guide("", "level", (), (0.0,)),)
    # Names stand where lines are smooth; the losses on the corpus have them only where nothing else is drawn.
    curves_by_title: list[tuple[str, list[Series], tuple[Guide, ...], Place]] = [
        ("training loss", losses, (), "none" if held_back else "ends"),
        ("held-back loss", held_back, (), "ends"),
        ("content gain", gains, zero, "ends"),
    ]
    panels = [
        Panel(tokens, Axis(title), tuple(series), guides, labels=place)
        for title, series, guides, place in curves_by_title
        if series
    ]
    grey = [label for label in labels if label not in chosen]
    sentences = [
        f"Losses of {len(curves)} training{'s' * (len(curves) > 1)} in nats per token, on the corpus and on held-back "
        "documents after their own history",
        "The content gain is how much worse another document's history is",
    ]
    meaning = "bars: one standard error, as the runs have stored it" if any(gain.intervals for gain in gains) else ""
    caption = picture.caption(sentences, [meaning, picture.grey_of(grey)], LeftOut(len(curves)))
    return Picture(tuple(panels), caption, f"Grey: {'; '.join(grey)}." if grey else "")


def _labels(curves: Sequence[Training], names: Names) -> list[str]:
    """Short labels, numbered where several trainings have the same."""
    short = unique_titles((curve.label for curve in curves), names)
    labels = [short[curve.label] for curve in curves]
    return [
        f"{text} #{labels[: n + 1].count(text)}" if labels.count(text) > 1 else text for n, text in enumerate(labels)
    ]


def _read(folder: Path) -> Training:
    card = _card(folder / CARD) if (folder / CARD).is_file() else {}
    try:
        if (folder / CURVE).is_file():
            lines = records.curve(folder / CURVE)
            validations = [(line["tokens"], line["validation"]) for line in lines if "validation" in line]
            losses = [(line["tokens"], line["nats"]) for line in lines if "nats" in line]
        else:
            validations = [(line["tokens"], line) for line in card["curve"]]
            losses = [(line["tokens"], line["loss"]) for line in card.get("losses", [])]
        label, method = str(card.get("label", folder.name)), str(card.get("method", ""))
        return Training(label, method, _pairs(losses), tuple((float(t), _checked(v)) for t, v in validations))
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{folder} holds no curve of a training ({error}): train again, or name another.") from None


def _card(path: Path) -> dict[str, Any]:
    try:
        return seals.opened(seals.text(path))
    except seals.Damaged as damaged:
        raise UserError(f"{path} cannot be read ({damaged}): put the intact file back, or train again.") from None


def _checked(validation: dict[str, Any]) -> dict[str, Any]:
    values = {name: float(validation[name]) for name in ("loss", "content_gain")}
    # There is no standard error of one document.
    return {**values, "content_error": float(validation["content_error"] or 0)}


def _pairs(pairs: Iterable[tuple[Any, Any]]) -> tuple[tuple[float, float], ...]:
    return tuple((float(x), float(y)) for x, y in pairs)


def _averaged(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most `MOST` points, each the mean of so many neighbours."""
    size = math.ceil(len(points) / MOST)
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    return [(sum(x for x, _ in group) / len(group), sum(y for _, y in group) / len(group)) for group in groups]


def _bar(value: float, error: float) -> tuple[float, float] | None:
    return (value - error, value + error) if error else None
