"""What the source says of a class or constant, without running any of it: importing a method would bring a whole model
library."""

from __future__ import annotations

import ast
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

HOPS = 8
"""Modules that a name may be handed on through."""


def first_line(target: str) -> str:
    """The first line of the docstring of `module:Class`; empty when the source does not show it."""
    module, _, name = target.partition(":")
    for _ in range(HOPS):
        try:
            spec = _spec(module)
            if spec is None or spec.origin is None:
                return ""
            tree = ast.parse(Path(spec.origin).read_bytes())
        except Exception:  # finders and sources of others may fail in any way
            return ""
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name == name:
                return (ast.get_docstring(node) or "").partition("\n")[0]
        source = _imported_from(
            tree, name, module, package=spec is not None and spec.submodule_search_locations is not None
        )
        if source is None:
            return ""
        module, name = source
    return ""


def constant(target: str) -> Any:
    """The value of `module:NAME`, which the module of this package writes out in full.

    Raises:
        KeyError: where it does not.
    """
    module, _, name = target.partition(":")
    spec = _spec(module)
    tree = ast.parse(Path(spec.origin).read_bytes()) if spec is not None and spec.origin is not None else ast.parse("")
    for node in tree.body:
        if isinstance(node, ast.Assign) and [ast.unparse(written) for written in node.targets] == [name]:
            return ast.literal_eval(node.value)
    raise KeyError(target)


def _imported_from(tree: ast.Module, name: str, module: str, *, package: bool) -> tuple[str, str] | None:
    """The module that a name is imported from, and its name there."""
    for node in tree.body:
        for alias in node.names if isinstance(node, ast.ImportFrom) else ():
            if (alias.asname or alias.name) == name:
                assert isinstance(node, ast.ImportFrom)
                return imported_module(node, module, package=package), alias.name
    return None


def imported_module(statement: ast.ImportFrom, module: str, *, package: bool) -> str:
    """The module that a statement imports from.

    Args:
        statement: `from ... import ...`.
        module: that it stands in.
        package: whether this module is a package.
    """
    # One level is the package itself, every further one a folder up.
    parents = module.split(".")[: None if package and statement.level == 1 else package - statement.level]
    above = parents if statement.level else []
    return ".".join([*above, *([statement.module] if statement.module else [])])


def _spec(module: str) -> ModuleSpec | None:
    """Where a module is; unlike `importlib.util.find_spec` without importing the packages it is in."""
    spec, path = None, None
    parts = module.split(".")
    for end in range(1, len(parts) + 1):
        name = ".".join(parts[:end])
        specs = (finder.find_spec(name, path) for finder in sys.meta_path)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is None:
            return None
        path = spec.submodule_search_locations
    return spec
