"""A table in Markdown of what `contextlab ls` says of one method or task, for its page in docs/."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import re
from collections.abc import Callable
from typing import Any

from tables import records

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


PARTS: dict[str, Callable[[str], list[Line]]] = {"settings": settings, "splits": splits, "weights": weights}


def page(part: str, name: str) -> str:
    """A table, or a sentence where it would have no rows."""
    lines = PARTS[part](name)
    return records(lines) if lines else f"`{name}` has no {part}."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("name", help="of the method or task")
    arguments = parser.parse_args()
    print(page(arguments.part, arguments.name))


if __name__ == "__main__":
    main()
