"""Fills pages with tables: the text between `<!-- run: COMMAND -->` and `<!-- end -->` becomes the command's output.

Commands are `contextlab ...`, `benches/tables.py ...` and `benches/about.py ...`; they run in the folder of the
project. Of `contextlab plot` the page shows the picture, above the caption that it prints. `--only WORD` fills the
sections whose command has the word, as `about.py` after the settings of a method have changed.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SECTION = re.compile(r"(<!-- run: (.*?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
CONTEXTLAB = "import sys; from contextlab.cli.main import main; sys.exit(main())"
PROGRAMS = {
    "contextlab": ["-c", CONTEXTLAB],
    "benches/about.py": ["benches/about.py"],
    "benches/tables.py": ["benches/tables.py"],
}


def filled(page: str, folder: Path = ROOT, only: str = "") -> str:
    """A page with the output of its commands.

    Args:
        page: its text.
        folder: the page is in.
        only: sections whose command does not contain this stay as they are.
    """

    def section(match: re.Match[str]) -> str:
        command = match[2]
        return f"{match[1]}\n{shown(command, output(command), folder)}\n{match[4]}" if only in command else match[0]

    return SECTION.sub(section, page)


def shown(command: str, printed: str, folder: Path) -> str:
    """What a page in a folder shows of a command: its output, below the picture that it has made."""
    path = picture(command)
    if path is None:
        return printed
    # What is drawn, without the data that the caption below names.
    drawn = re.split(r"\. |, n = ", printed, maxsplit=1)[0].strip().translate(str.maketrans("[]", "()"))
    return f"![{drawn}]({Path(os.path.relpath(path, folder)).as_posix()})\n\n{printed}"


def picture(command: str) -> Path | None:
    """The file of the picture that a command makes; None for other commands."""
    words = shlex.split(command)
    return ROOT / words[words.index("-o") + 1] if words[:2] == ["contextlab", "plot"] else None


def output(command: str) -> str:
    """The output of a command."""
    program, *arguments = shlex.split(command)
    argv = [sys.executable, *PROGRAMS[program], *arguments]
    return subprocess.run(argv, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip() + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", type=Path, nargs="+")
    parser.add_argument("--only", default="", metavar="WORD", help="of the commands whose sections are filled")
    arguments = parser.parse_args()
    for page in arguments.pages:
        page.write_text(filled(page.read_text("utf-8"), page.resolve().parent, arguments.only), "utf-8")


if __name__ == "__main__":
    main()
