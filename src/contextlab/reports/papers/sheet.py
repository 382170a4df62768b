"""A table with sentences below it, as text."""

from __future__ import annotations

import dataclasses
from typing import Any

from contextlab import harmless
from contextlab.reports.papers.schema import Paper, PaperEntry


@dataclasses.dataclass(frozen=True)
class Page:
    """A table with sentences below it; the first row has the names of the columns."""

    title: str
    rows: list[tuple[str, ...]]
    notes: list[str]

    def markdown(self) -> str:
        """The page as Markdown."""
        cells = [[_plain(cell) for cell in row] for row in self.rows]
        lines = [cells[0], ["---"] * len(cells[0]), *cells[1:]]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        notes = "\n".join(f"* {_plain(note)}" for note in self.notes)
        return "\n\n".join(filter(None, (f"**{_plain(self.title)}**", table, notes)))

    def as_dict(self) -> dict[str, Any]:
        """The page as JSON."""
        head, *rows = self.rows
        return {
            "title": self.title,
            "rows": [dict(zip((head[0] or "what", *head[1:]), row, strict=True)) for row in rows],
            "notes": self.notes,
        }


def title(paper: Paper, entry: PaperEntry) -> str:
    """Where an entry stands."""
    where = f"section {entry.section}" if entry.section[:1].isdigit() else entry.section
    return f"{paper.name}/{entry.name}: {paper.authors}, {entry.label} ({where})"


def _plain(text: str) -> str:
    """Text that cannot act as markup in a Markdown table."""
    return harmless.markdown(text).replace("*", r"\*")
