"""The command line: one module per sub-command, none of which imports torch before it has to."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

WIDTH_OF_FILES = 160


def console() -> Console:
    """Standard output for tables: as wide as the terminal, or wide enough for a table in a file."""
    from rich.console import Console

    return Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else WIDTH_OF_FILES)
