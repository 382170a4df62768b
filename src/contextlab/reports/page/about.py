"""Cards of methods and tasks: what their classes say of themselves."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable
from typing import Any

from contextlab import registry
from contextlab.config import Config, described
from contextlab.errors import UserError


def cards(methods: Iterable[str], tasks: Iterable[str]) -> list[dict[str, Any]]:
    """A card for every name: `kind`, `name`, `about` in paragraphs, `settings` and, of tasks, `splits`.

    A name that is not registered here has a card that says so: results may come from another machine.
    """
    return [*(_card("method", name) for name in methods), *(_card("task", name) for name in tasks)]


def _card(kind: str, name: str) -> dict[str, Any]:
    card: dict[str, Any] = {"kind": kind, "name": name}
    try:
        # A path in a result is one of the machine that made it; nothing of it is run to show a page.
        if ".py:" in name:
            raise UserError(f"A {kind} in a file of its own.")
        if kind == "method":
            found = registry.method_class(name)
            return card | _about(found, found.Config)
        task = registry.task(name)
        return card | _about(type(task), task.Config) | {"splits": task.splits}
    except UserError as error:
        return card | {"about": [str(error)], "settings": []}


def _about(kind: type[Any], config: type[Config]) -> dict[str, Any]:
    text = inspect.cleandoc(kind.__doc__ or "")
    paragraphs = [" ".join(one.split()) for one in text.split("\n\n") if not one.startswith(("Args:", "Attributes:"))]
    with registry.foreign(f"The settings of {kind.__name__} cannot be read", "correct its Config"):
        settings = [dataclasses.asdict(one) for one in described(config)]
    return {"about": paragraphs, "settings": settings}
