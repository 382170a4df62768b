"""Fills pages with tables: the text between `<!-- run: COMMAND -->` and `<!-- end -->` becomes the command's output.

Commands are `contextlab ...` and `benches/tables.py ...`; they run in the folder of the project.
"""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SECTION = re.compile(r"(<!-- run: (.*?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
CONTEXTLAB = "import sys; from contextlab.cli.main import main; sys.exit(main())"
PROGRAMS = {"contextlab": ["-c", CONTEXTLAB], "benches/tables.py": ["benches/tables.py"]}


def filled(page: str) -> str:
    """A page with the output of its commands."""
    return SECTION.sub(lambda match: f"{match[1]}\n{output(match[2])}\n{match[4]}", page)


def output(command: str) -> str:
    """The output of a command."""
    program, *arguments = shlex.split(command)
    argv = [sys.executable, *PROGRAMS[program], *arguments]
    return subprocess.run(argv, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip() + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", type=Path, nargs="+")
    for page in parser.parse_args().pages:
        page.write_text(filled(page.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
