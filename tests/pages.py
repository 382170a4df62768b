"""The pages of the project, and the parts of them that commands fill."""

from __future__ import annotations

import dataclasses
import importlib
import re
import sys
import textwrap
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


@dataclasses.dataclass(frozen=True)
class Block:
    """Code that a page shows.

    Attributes:
        page: that shows it.
        line: number of its first line.
        mark: content of the comment before it, "" where there is none.
        language: python, sh, ...; "" for an indented block.
        code: its lines.
    """

    page: str
    line: int
    mark: str
    language: str
    code: str

    @property
    def commands(self) -> list[str]:
        """Its lines, each with the lines that continue it."""
        return [line for line in self.code.replace("\\\n", " ").splitlines() if line.strip()]

    @property
    def runs(self) -> bool:
        """Whether a reader can run it: Python, or a line that begins with the name of a program."""
        return self.language == "python" or any(line.split()[0] in PROGRAMS for line in self.commands)


PROGRAMS = frozenset({"accelerate", "contextlab", "git", "mkdocs", "pip", "python", "python3", ".venv/bin/pip"})
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
INDENTED = re.compile(r"(?<=\n\n)((?: {4}.*\n)+)")
MARK = re.compile(r"<!-- ((?:not run|tested)[^\n]*) -->\s*\Z")


def blocks(page: str) -> list[Block]:
    """All code of a page that readers can run."""
    content = text(page)
    fences = [(match.start(), match[2], textwrap.dedent(match[3])) for match in FENCE.finditer(content)]
    # What a fence holds is no indented block.
    rest = FENCE.sub(lambda match: re.sub(r"[^\n]", "x", match[0]), content)
    fences += [(match.start(), "", textwrap.dedent(match[1])) for match in INDENTED.finditer(rest)]
    blocks = [
        Block(page, content.count("\n", 0, start) + 1, mark_before(content[:start]), language, code)
        for start, language, code in sorted(fences)
    ]
    return [block for block in blocks if block.runs]


def mark_before(content: str) -> str:
    match = MARK.search(content)
    return match[1] if match else ""
