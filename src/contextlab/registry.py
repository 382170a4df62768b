"""Finds methods and tasks: built-in and third-party ones by entry point, a user's own file by `path.py:Class`."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import sys
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from contextlab.errors import UserError, unknown

if TYPE_CHECKING:
    from contextlab.benchmarks.task import Task
    from contextlab.method import ContextMethod

METHODS = "contextlab.methods"
TASKS = "contextlab.tasks"


def methods() -> dict[str, str]:
    """Names of all methods, each with the package it comes from."""
    return _names(METHODS)


def tasks() -> dict[str, str]:
    """Names of all tasks, each with the package it comes from."""
    return _names(TASKS)


def method_class(name: str) -> type[ContextMethod]:
    """The class of a method, by name or `path.py:Class`.

    Raises:
        UserError: when there is none of that name, or it cannot be imported.
    """
    found: type[ContextMethod] = _find("method", METHODS, name)
    return found


def task(name: str) -> Task:
    """A task, by name or `path.py:Class`.

    Raises:
        UserError: when there is none of that name, or it cannot be imported.
    """
    found: Task = _find("task", TASKS, name)()
    return found


def without_folder(name: str) -> str:
    """A name as it identifies what it names: of `path.py:Class` the folder depends on where the user stands."""
    path, separator, attribute = name.rpartition(":")
    return f"{Path(path).name}:{attribute}" if separator else name


def source_digest(module: str) -> str:
    """sha256 of the Python files that a loaded module consists of.

    These are the files of its top-level package; of a single file, that file and what it imports from its own folder.
    It is taken once per loaded module, so that editing a file does not relabel what this process has imported.
    """
    return _source_digest(sys.modules[module.partition(".")[0]])


@cache
def _source_digest(top: ModuleType) -> str:
    roots = [Path(folder) for folder in getattr(top, "__path__", [])]
    files = [(file.relative_to(root), file) for root in roots for file in root.rglob("*.py")]
    if not roots and top.__file__:
        own = Path(top.__file__)
        files = [(file.relative_to(own.parent), file) for file in _imported(own, own.parent, set())]
    digest = hashlib.sha256()
    for name, file in sorted(files):
        digest.update(f"{name.as_posix()}\0".encode() + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def _imported(file: Path, folder: Path, seen: set[Path]) -> set[Path]:
    """A file and what it imports, directly or not, from below a folder."""
    seen.add(file)
    for name in _names_imported(ast.parse(file.read_bytes())):
        module = sys.modules.get(name)
        source = Path(getattr(module, "__file__", None) or "")
        if source.suffix == ".py" and source.is_relative_to(folder) and source not in seen:
            _imported(source, folder, seen)
    return seen


def _names_imported(tree: ast.Module) -> Iterator[str]:
    """Modules that a source may import, with those that a package of theirs consists of."""
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        before = f"{node.module}." if isinstance(node, ast.ImportFrom) and node.module else ""
        for name in names:
            parts = (before + name).split(".")
            yield from (".".join(parts[:end]) for end in range(1, len(parts) + 1))


def _names(group: str) -> dict[str, str]:
    return {entry.name: _package(entry) for entry in sorted(metadata.entry_points(group=group))}


def _package(entry: metadata.EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else entry.value.partition(".")[0]


def _find(kind: str, group: str, name: str) -> Any:
    if ".py" in name:
        return _from_file(kind, name)
    entries = {entry.value: entry for entry in metadata.entry_points(group=group) if entry.name == name}
    if not entries:
        raise unknown(kind, name, _names(group))
    if len(entries) > 1:
        packages = " and ".join(sorted(_package(entry) for entry in entries.values()))
        raise UserError(f"The {kind} '{name}' is registered by {packages}: uninstall all but one of them.")
    (entry,) = entries.values()
    try:
        return entry.load()
    except Exception as error:
        package = _package(entry)
        raise UserError(
            f"The {kind} '{name}' of package {package} cannot be imported ({error}): update or uninstall {package}."
        ) from error


def _from_file(kind: str, name: str) -> Any:
    path, separator, attribute = name.rpartition(":")
    if not separator or not path.endswith(".py"):
        raise UserError(f"'{name}' names no class: write path.py:Class for a {kind} in a file of your own.")
    if not Path(path).is_file():
        raise UserError(f"There is no file {path}: give the path of the file that holds the {kind} {attribute}.")
    module = _module(Path(path).resolve())
    if not hasattr(module, attribute):
        raise unknown(f"{kind} in {path}", attribute, [n for n, v in vars(module).items() if isinstance(v, type)])
    return getattr(module, attribute)


def _module(path: Path) -> ModuleType:
    # The folder is part of the name, so that two files of one name do not take each other's place.
    name = f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise UserError(f"{path} cannot be imported ({error}): mend the file and try again.") from error
    return module
