"""The pages of the project, and the parts of them that commands fill."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "CONTRIBUTING.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")))


def text(page: str) -> str:
    return (ROOT / page).read_text("utf-8")


def filled(program: str) -> list[tuple[str, str, str]]:
    """Page, command and text of every section that a program fills."""
    section = re.compile(rf"<!-- run: ({re.escape(program)} .*?) -->\n(.*?)<!-- end -->", re.DOTALL)
    return [(page, command, shown) for page in PAGES for command, shown in section.findall(text(page))]


def bench(name: str) -> ModuleType:
    """A script of benches/ as a module."""
    if str(ROOT / "benches") not in sys.path:
        sys.path.append(str(ROOT / "benches"))
    return importlib.import_module(name)
