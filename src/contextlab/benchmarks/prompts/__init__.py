"""Prompts: text files in this folder, with `{placeholders}`; a result stores the digest of its prompt."""

from __future__ import annotations

from importlib import resources


def prompt(name: str) -> str:
    """The text of `<name>.txt`, without the line end at the end of the file."""
    text = (resources.files(__name__) / f"{name}.txt").read_text(encoding="utf-8")
    return text.removesuffix("\n")
