"""Prompts: text files in this folder, with `{placeholders}`; a result stores the digest of its prompt."""

from __future__ import annotations

from importlib import resources

from contextlab.errors import unknown


def prompt(name: str) -> str:
    """The text of `<name>.txt`, without the line end at the end of the file; a text with a placeholder is itself one.

    Raises:
        UserError: when there is no such prompt.
    """
    if "{" in name:
        return name
    folder = resources.files(__name__)
    try:
        return (folder / f"{name}.txt").read_text(encoding="utf-8").removesuffix("\n")
    except OSError:
        known = sorted(file.name.removesuffix(".txt") for file in folder.iterdir() if file.name.endswith(".txt"))
        raise unknown("prompt", name, known) from None
