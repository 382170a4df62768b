"""The command line: one module per sub-command, which imports torch only when needed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from contextlab import harmless

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

WIDTH_OF_FILES = 160


def console() -> Console:
    """Standard output for tables: as wide as the terminal, or wide enough for a table in a file.

    Text is shown literally: without markup, emoji names or control characters.
    """
    from rich.console import Console

    class Screen(Console):
        def render_str(self, text: str, **options: Any) -> Text:
            return super().render_str(harmless.text(text), **options)

    return Screen(highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else WIDTH_OF_FILES)


def say(text: str) -> None:
    """Print text with parts from foreign files or packages, without control characters."""
    print(harmless.text(text))


def warn(text: str) -> None:
    """Print a sentence on standard error that belongs to no result, without control characters."""
    print(harmless.line(text), file=sys.stderr, flush=True)


def announce() -> None:
    """Say on a terminal what takes the first seconds, before it begins."""
    if sys.stderr.isatty():
        print("loading torch and transformers", end="\r", file=sys.stderr, flush=True)
