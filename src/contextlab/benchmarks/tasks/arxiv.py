"""ArXiv (LongMem, section 3.1): perplexity of long papers in LaTeX.

The paper's 100 documents are not published. The task reads the user's own folder `arxiv`, in which every file is a
document, or else the replacement `latex_papers`. Markup, comments and preambles are kept.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from contextlab.benchmarks.tasks.folder import FolderTask


class ArXiv(FolderTask):
    """Perplexity of papers in LaTeX or text, by token and by word."""

    name: ClassVar[str] = "arxiv"
    splits: ClassVar[dict[str, str]] = {"all": "every .tex and .txt file of the folder"}
    default_split: ClassVar[str] = "all"
    folders: ClassVar[dict[str, tuple[str, ...]]] = {"all": ("arxiv", "latex_papers")}
    endings: ClassVar[tuple[str, ...]] = (".tex", ".txt")
    sample: ClassVar[tuple[int, int]] = (6, 12_000)
    seeds: ClassVar[dict[str, int]] = {"all": 23}

    def note(self, split: str, folder: Path, documents: int) -> str:
        """Names the replacement, which is recognised by its folder."""
        if folder.name == "latex_papers":
            return "stand-in: LaTeX of other origin, not papers of arXiv"
        return f"papers of the user's own choice ({documents} files), not the LongMem paper's list"
