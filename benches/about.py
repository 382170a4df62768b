"""A table in Markdown for a page in docs/: of a method or task, as `contextlab ls` lists it, or of trained weights."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import re
from collections.abc import Callable
from typing import Any

from tables import records

from contextlab import trained
from contextlab.cli.main import main as contextlab

Line = dict[str, Any]


def listed(*arguments: str) -> list[Line]:
    """The objects that `contextlab ls` prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        contextlab(["ls", *arguments, "--json"])
    return [json.loads(line) for line in printed.getvalue().splitlines()]


def code(text: str) -> str:
    return f"`{text}`" if text else ""


def settings(name: str) -> list[Line]:
    """The settings of a method or task."""
    kind = "methods" if name in {line["name"] for line in listed("methods")} else "tasks"
    (line,) = listed(kind, name)
    return [
        {
            "setting": code(setting["name"]),
            "values": setting["type"],
            "default": code(setting["default"]),
            "meaning": setting["about"],
        }
        for setting in line["settings"]
    ]


def splits(name: str) -> list[Line]:
    """The splits of a task."""
    (line,) = listed("tasks", name)
    return [
        {"split": code(split) + (" (default)" if split == line["default"] else ""), "holds": about}
        for split, about in line["splits"].items()
    ]


def weights(name: str) -> list[Line]:
    """The trained weights of a method that come with the package."""
    return [
        {
            "weights": code(line["name"]),
            "method and training": re.sub(r"^(.*)(?= trained on)", r"`\1`,", line["about"]),
            "backbone": line["backbone"],
            "size": line["size"],
            "settings that may differ": ", ".join(map(code, line["free"])),
            "default of the method": "yes" if line["stands for"] == name else "no",
        }
        for line in listed("weights")
        if re.match(rf"{re.escape(name)}\b(?!-)", line["about"])
    ]


def learned(backbone: str) -> list[Line]:
    """What the weights beside a backbone have learned, in nats per token, where the card says of how many books."""
    return [
        {
            "weights": code(name),
            "tokens": f"{card['cost']['tokens']:,}",
            "learning rate": str(card["training"]["lr"]),
            "seed": str(card["training"]["seed"]),
            "books": str(card["gains"]["documents"]),
            "before": f"{card['curve'][0]['loss']:.4f}",
            "after": f"{card['gains']['loss']:.4f}",
            "wrong history": f"{card['gains']['wrong']:.4f}",
            "content gain": f"{card['gains']['content_gain']:.4f}",
            "standard error": f"{card['gains']['content_error']:.4f}",
            "window": f"{card['gains']['window']:.4f}",
            "full": f"{card['gains']['full']:.4f}",
        }
        for name, card in cards_beside(backbone)
        if "documents" in card["gains"]
    ]


def grid(backbone: str) -> list[Line]:
    """The learning rates that were tried for the weights beside a backbone, with the loss on held-back books."""
    return [
        {
            "weights": code(name),
            "tokens": f"{max(trial['tokens'] or 0 for trial in card['grid']) - tokens_before(card):,}",
            **{str(t["lr"]): "not finite" if t["loss"] is None else f"{t['loss']:.4f}" for t in card["grid"]},
            "chosen": str(card["training"]["lr"]),
        }
        for name, card in cards_beside(backbone)
        if card.get("grid")
    ]


def tokens_before(card: Line) -> int:
    """The tokens of the trainings that the last one went on from."""
    return int(card["begun_with"]["cost"]["tokens"]) if card.get("begun_with") else 0


def cards_beside(backbone: str) -> list[tuple[str, Line]]:
    """Names and cards of the weights that come with the package for a backbone."""
    return [(known.name, known.card.model_dump()) for known in trained.every() if known.card.backbone.name == backbone]


PARTS: dict[str, Callable[[str], list[Line]]] = {
    "settings": settings,
    "splits": splits,
    "weights": weights,
    "learned": learned,
    "grid": grid,
}


def page(part: str, name: str) -> str:
    """A table, or a sentence where it would have no rows."""
    lines = PARTS[part](name)
    return records(lines) if lines else f"`{name}` has no {part}."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("name", help="of the method, the task or, for `learned` and `grid`, the backbone")
    arguments = parser.parse_args()
    print(page(arguments.part, arguments.name))


if __name__ == "__main__":
    main()
