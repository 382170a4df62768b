"""Prompts are text files beside this one, with `{placeholders}`; what a result was asked with is hashed into it."""

from __future__ import annotations

from importlib import resources


def prompt(name: str) -> str:
    """The text of `<name>.txt`, without the line end that closes the file."""
    text = (resources.files(__name__) / f"{name}.txt").read_text(encoding="utf-8")
    return text.removesuffix("\n")
