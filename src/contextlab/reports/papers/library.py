"""The papers that come with the package, found by name."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

import pydantic

from contextlab.errors import UserError, unknown
from contextlab.reports.papers.schema import Entry, Paper

FOLDER = Path(__file__).parent


def read(path: Path) -> Paper:
    """The paper of a file.

    Raises:
        UserError: when the file cannot be read, is no TOML, or does not hold a paper.
    """
    try:
        return Paper.model_validate(tomllib.loads(path.read_text("utf-8")))
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        reason = ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))
    except (OSError, ValueError) as error:
        reason = str(error)
    raise UserError(f"{path} does not hold a paper ({reason}): correct it, or install the package again.")


@cache
def papers() -> dict[str, Paper]:
    """The papers by name, in the order of their names.

    Raises:
        UserError: when a file is broken.
    """
    read_all = [read(path) for path in sorted(FOLDER.glob("*.toml"))]
    return {paper.name: paper for paper in read_all}


def find(name: str) -> list[tuple[Paper, Entry]]:
    """The entries that a name stands for: all of a paper, or one, as in `longmem/table7`.

    Raises:
        UserError: for an unknown name, with the most similar one.
    """
    known = {f"{paper.name}/{entry.name}": (paper, entry) for paper in papers().values() for entry in paper.entry}
    if name in papers():
        return [pair for key, pair in known.items() if key.startswith(f"{name}/")]
    if name in known:
        return [known[name]]
    paper, slash, entry = name.partition("/")
    if slash and paper in papers():
        # All entries of a paper are few enough to be listed.
        raise unknown(f"entry of {paper}", entry, [one.name for one in papers()[paper].entry])
    raise unknown("paper or entry", name, known if slash else papers())
