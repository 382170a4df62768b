"""Imports between packages ("rooms"): arrows, circles, arrows upwards and sizes; and names with several meanings."""

from __future__ import annotations

import ast
import io
import json
import statistics
import tokenize
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
PACKAGE = "contextlab"
FLOORS: tuple[tuple[str, ...], ...] = (
    (
        "version",
        "errors",
        "paths",
        "locks",
        "process",
        "harmless",
        "tensors",
        "static",
        "files",
        "seals",
        "packed",
        "grammar",
        "cards",
        "trained",
        "config",
        "formula",
        "writing",
        "foreign_code",
    ),
    ("kernels",),
    ("states", "calls", "attention"),
    ("backbone",),
    ("learned", "method"),
    ("methods", "accounting"),
    ("benchmarks",),
    ("registry", "naming"),
    ("harness",),
    ("testing", "integrations", "reports", "training", "sweeps", "planning"),
    ("verify",),
    ("cli", PACKAGE),
)
"""Rooms by floor, from the lowest; a room imports from its own floor and from those below."""
NOT_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def modules(source: Path = SOURCE) -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    files = sorted((source / PACKAGE).rglob("*.py"))
    names = (".".join(file.relative_to(source).with_suffix("").parts).removesuffix(".__init__") for file in files)
    return dict(zip(names, files, strict=True))


def imports(name: str, path: Path, known: dict[str, Path]) -> set[str]:
    """The modules of the package that a module imports anywhere, including imports for types."""
    return {target for target in _imported(ast.parse(path.read_text()), known) if target != name}


def _imported(tree: ast.Module, known: dict[str, Path]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module in known:
            submodules = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name for name in submodules if name in known)
            if any(name not in known for name in submodules):
                yield str(node.module)


def room(name: str) -> str:
    """The room of a module: its first part below the package."""
    return [*name.split("."), PACKAGE][1] if name != PACKAGE else PACKAGE


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules that import each other, directly or not."""
    reach = {name: _reach(name, graph) for name in graph}
    groups = {tuple(sorted(other for other in reach[name] if name in reach[other])) for name in graph}
    return [list(group) for group in sorted(groups) if group]


def _reach(start: str, graph: dict[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    open_ = [start]
    while open_:
        for target in graph[open_.pop()] - seen:
            seen.add(target)
            open_.append(target)
    return seen


def upward(graph: dict[str, set[str]]) -> list[str]:
    """Arrows from a room to a room on a higher floor."""
    floor = {name: number for number, rooms in enumerate(FLOORS) for name in rooms}
    arrows = ((name, target) for name in graph for target in graph[name])
    return sorted(f"{a} -> {b}" for a, b in arrows if floor[room(a)] < floor[room(b)])


def code_lines(path: Path) -> int:
    """Number of lines with code, without blank lines, comments and docstrings."""
    text = path.read_text()
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    skipped: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        for statement in getattr(node, "body", []) if isinstance(node, documented) else []:
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                skipped.update(range(statement.lineno, (statement.end_lineno or 0) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NOT_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - skipped)


def single_importers(graph: dict[str, set[str]]) -> dict[str, str]:
    """Modules that exactly one other module imports, with that one."""
    importers: dict[str, list[str]] = {}
    for name, targets in graph.items():
        for target in targets:
            importers.setdefault(target, []).append(name)
    return {target: names[0] for target, names in sorted(importers.items()) if len(names) == 1}


def repeated_classes(known: dict[str, Path]) -> dict[str, list[str]]:
    """Public names of classes that several modules define, with these modules."""
    owners: dict[str, list[str]] = {}
    for name, path in known.items():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                owners.setdefault(node.name, []).append(name)
    return {name: modules for name, modules in sorted(owners.items()) if len(modules) > 1}


def variables(name: str, known: dict[str, Path]) -> int:
    """How often the package names a variable or argument so."""
    return sum(name == word for path in known.values() for word in identifiers(path))


def identifiers(path: Path) -> Iterator[str]:
    """The names of variables, arguments and functions of a module, as often as they stand there."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef):
            yield node.name
        elif word := getattr(node, "id", None) or getattr(node, "arg", None):
            yield word


def drawn() -> dict[str, object]:
    """Numbers of rooms, arrows, circles, code lines and words with several meanings."""
    known = modules()
    graph = {name: imports(name, path, known) for name, path in known.items()}
    sizes = {name: code_lines(path) for name, path in known.items()}
    arrows = {(room(a), room(b)) for a in graph for b in graph[a] if room(a) != room(b)}
    tests = sum(map(code_lines, (SOURCE.parent / "tests").rglob("*.py")))
    return {
        "modules": len(known),
        "code_lines": sum(sizes.values()),
        "median_module": statistics.median(sizes.values()),
        "largest_modules": dict(sorted(sizes.items(), key=lambda item: -item[1])[:5]),
        "tests_per_source": round(tests / sum(sizes.values()), 3),
        "rooms": {a: sorted(b for c, b in arrows if c == a) for a in sorted({a for a, _ in arrows})},
        "circles": circles(graph),
        "upward": upward(graph),
        "single_importers": {name: sizes[name] for name in single_importers(graph)},
        "repeated_classes": repeated_classes(known),
        "variables_named_one": variables("one", known),
    }


if __name__ == "__main__":
    print(json.dumps(drawn(), indent=1))
