"""`contextlab new`."""

from __future__ import annotations

import importlib.util
import keyword
import re
import sys
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from string import Template
from typing import Annotated, Literal

import typer

from contextlab import files
from contextlab.cli import say
from contextlab.errors import UserError, short

NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")

app = typer.Typer(help="Begin a method or a task of your own.", rich_markup_mode=None)

Name = Annotated[str, typer.Argument(help="Its name, as my-task: small letters, digits and hyphens.")]
Out = Annotated[Path | None, typer.Option(help="Folder to write, which does not exist yet; by default the name.")]


@app.callback()
def new() -> None:
    """Begin a method or a task of your own."""


@app.command()
def method(name: Name, out: Out = None) -> None:
    """Write a small package with a method, and a test of the laws that passes at once."""
    from contextlab import registry

    _write("method", name, out, registry.methods())


@app.command()
def task(name: Name, out: Out = None) -> None:
    """Write a small package with a task, and a test that every line of its file is an example with a result."""
    from contextlab import registry

    _write("task", name, out, registry.tasks())


def _write(kind: Literal["method", "task"], name: str, out: Path | None, existing: Iterable[str]) -> None:
    module = name.replace("-", "_")
    if not NAME.fullmatch(name) or keyword.iskeyword(module) or module in sys.stdlib_module_names:
        raise UserError(f"'{short(name)}' cannot name a module of Python: choose small letters, as my-{kind}.")
    if importlib.util.find_spec(module) is not None:
        raise UserError(f"A module '{module}' is installed already, which the new one would hide: choose another name.")
    if name in existing:
        raise UserError(f"There is a {kind} '{name}' already: choose another name.")
    folder = out or Path(name)
    if folder.exists():
        raise UserError(f"{folder} exists already: name another folder with --out, or take it away.")
    words = {"name": name, "module": module, "cls": name.title().replace("-", "")}
    skeleton = resources.files("contextlab.cli") / "skeletons" / kind
    names = {"pyproject.toml": "pyproject.toml", "module.py": f"{module}.py", "test.py": f"test_{module}.py"}
    with files.writing(folder, "choose another folder with --out"), files.new_folder(folder) as fresh:
        for template, file in names.items():
            text = (skeleton / f"{template}.txt").read_text(encoding="utf-8")
            files.write(fresh / file, Template(text).substitute(words))
    say(f"{folder} holds the {kind} {name} and its test. Run them, then change {module}.py:")
    say(f"  pytest {folder}")
    say(f"  contextlab ls {kind}s {folder / f'{module}.py'}:{words['cls']}")
    say(f"  pip install -e {folder}     # then the name {name} is enough")
