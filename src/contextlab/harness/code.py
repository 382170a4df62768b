"""The state of the code of a run: a digest of every module that its method and task import."""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import itertools
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from contextlab import static
from contextlab.errors import UserError

PACKAGE = "contextlab"
LEFT_OUT = {f"{PACKAGE}.version", f"{PACKAGE}.accounting"}
"""Not followed, as the package's own `__init__`, which only names what it has: counting declares its version."""
INSTALLED = {"site-packages", "dist-packages"}
WITHOUT_EFFECT = {"ctx", "kind", "type_comment", "type_ignores"}
"""Fields of syntax that follow from others, or change nothing."""
DIGITS = 12


@dataclasses.dataclass(frozen=True)
class _Code:
    """The code of a module.

    Attributes:
        digest: of its syntax without comments, documentation, layout and what only type checkers see.
        imports: names that it may import, anywhere: modules, and names in them.
    """

    digest: str
    imports: tuple[str, ...]


def modules(kinds: Iterable[type | Callable[..., Any]]) -> dict[str, str]:
    """Digests of all modules that classes and functions are made of, by name: their own and what these import, directly
    or not.

    Only modules of this package are followed, and those of the package or folder that one of them comes from, but none
    of the standard library. A file of a folder has its path there as its name. Each loaded module is read once per
    process, so that editing a file does not relabel what this process has imported.

    Raises:
        UserError: when the file of a module cannot be read.
    """
    digests: dict[str, str] = {}
    names = dict.fromkeys(kind.__module__ for kind in kinds)
    for name in names:
        if name.partition(".")[0] not in sys.stdlib_module_names:
            digests |= _reached(name)
    return dict(sorted(digests.items()))


def digest(text: str | bytes) -> str:
    """Digest of what a source does; two sources that differ only in comments, documentation or layout have the same."""
    return _code(text).digest


def _reached(start: str) -> dict[str, str]:
    """Digests of the modules that a loaded module reaches, by name."""
    home = _Home.of(start)
    digests: dict[str, str] = {}
    stack, visited = [start], {start}
    while stack:
        name = stack.pop()
        file = home.file(name)
        if file is None:
            continue
        code = _read(sys.modules.get(name), name, file)
        digests[home.shown(name, file)] = code.digest
        new = {part for target in (name, *code.imports) for part in _with_parents(target)} - visited
        stack += new
        visited |= new
    return digests


@dataclasses.dataclass(frozen=True)
class _Home:
    """Where the modules of a method or task are.

    Attributes:
        package: name of their package.
        folder: of a single file, its folder, from which it may import others; None for an installed one.
    """

    package: str
    folder: Path | None

    @classmethod
    def of(cls, module: str) -> _Home:
        """The home of a loaded module."""
        top = sys.modules[module.partition(".")[0]]
        file = Path(getattr(top, "__file__", None) or "")
        single = file.name and not hasattr(top, "__path__") and not INSTALLED & set(file.parts)
        return cls(top.__name__, file.parent if single else None)

    def file(self, name: str) -> Path | None:
        """The file of a module that belongs here or to this package; None of any other name."""
        top = name.partition(".")[0]
        if name == PACKAGE or not LEFT_OUT.isdisjoint(_with_parents(name)):
            return None
        file = _file(name, self.folder)
        belongs = top in (PACKAGE, self.package) or (file is not None and self._in_folder(top, file))
        return file if belongs else None

    def shown(self, name: str, file: Path) -> str:
        """The name of a module in a run, which does not depend on where a folder is."""
        if self.folder is None or name.partition(".")[0] == PACKAGE:
            return name
        return file.relative_to(self.folder).as_posix()

    def _in_folder(self, top: str, file: Path) -> bool:
        # A folder may hold an environment with all that is installed.
        if self.folder is None or top in sys.stdlib_module_names or not file.is_relative_to(self.folder):
            return False
        return not INSTALLED & set(file.relative_to(self.folder).parts)


def _file(name: str, folder: Path | None) -> Path | None:
    """The file of a module, loaded or not; nothing is imported to find it."""
    if name in sys.modules:
        loaded = getattr(sys.modules[name], "__file__", None)
        return Path(loaded) if loaded else None
    top, *rest = name.split(".")
    places = [Path(place) for place in getattr(sys.modules.get(top), "__path__", ())]
    if folder is not None and top not in sys.modules:
        places, rest = [folder], [top, *rest]
    files = (place.joinpath(*rest[:-1], end) for place in places if rest for end in _ends(rest[-1]))
    return next((file for file in files if file.is_file()), None)


def _ends(name: str) -> tuple[str, str]:
    return f"{name}.py", f"{name}/__init__.py"


def _with_parents(name: str) -> Iterator[str]:
    """A name with those of the packages that it is in, whose code runs before its own."""
    parts = name.split(".")
    return (".".join(parts[:end]) for end in range(1, len(parts) + 1))


@cache
def _read(module: ModuleType | None, name: str, file: Path) -> _Code:
    """The code of a module; `module` is None before it is loaded."""
    get_data = getattr(getattr(module, "__loader__", None), "get_data", lambda _: file.read_bytes())
    try:
        return _code(get_data(str(file)), name, file)
    except OSError as error:
        raise UserError(f"{file} cannot be read ({error.strerror}): put back the file that {name} is in.") from error


def _code(source: str | bytes, name: str = "", file: Path | str = "<text>") -> _Code:
    package = Path(file).name == "__init__.py"
    try:
        tree = ast.parse(source, file)
    except (SyntaxError, ValueError):  # of a compiled module, or of another version of Python
        content = source.encode() if isinstance(source, str) else source
        return _Code(hashlib.sha256(content).hexdigest()[:DIGITS], ())
    sha256, imports = hashlib.sha256(), dict[str, None]()
    for item in _walk(tree):
        sha256.update(f"{_token(item)}\n".encode())
        imports |= dict.fromkeys(_imported(item, name, package=package))
    return _Code(sha256.hexdigest()[:DIGITS], tuple(imports))


def _walk(tree: ast.AST) -> Iterator[Any]:
    """All that runs, in order: syntax, lists and values; the name of a field, and an end, are tuples."""
    stack: list[Any] = [tree]
    while stack:
        item = stack.pop()
        yield item
        if isinstance(item, ast.AST):
            stack.append(())
            stack += [part for field, value in reversed(list(_fields(item))) for part in (value, (field,))]
        elif isinstance(item, list):
            stack += [(), *reversed(item)]


def _fields(node: ast.AST) -> Iterator[tuple[str, Any]]:
    """The fields of a node that say something: later versions of Python add fields that are mostly empty."""
    for name, value in ast.iter_fields(node):
        content = list(_running(value)) if isinstance(value, list) else value
        if isinstance(node, ast.JoinedStr):
            content = list(_whole_texts(node.values))
        if name not in WITHOUT_EFFECT and content is not None and content != []:
            yield name, content


def _running(items: list[Any]) -> Iterator[Any]:
    """The items of a list without statements that do nothing: documentation, `pass`, and what is for type checkers."""
    for item in items:
        if isinstance(item, ast.If) and _for_types(item.test):
            yield from _running(item.orelse)
        elif not isinstance(item, ast.Pass) and not (
            isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant)
        ):
            yield item


def _whole_texts(values: list[ast.expr]) -> Iterator[ast.expr]:
    """The parts of an f-string with neighbouring texts as one, which some versions of Python split."""
    for are_texts, parts in itertools.groupby(values, lambda part: isinstance(part, ast.Constant)):
        if not are_texts:
            yield from parts
        elif text := "".join(str(part.value) for part in parts if isinstance(part, ast.Constant)):
            yield ast.Constant(text)


def _for_types(test: ast.expr) -> bool:
    name = test.attr if isinstance(test, ast.Attribute) else test.id if isinstance(test, ast.Name) else ""
    return name == "TYPE_CHECKING"


def _token(item: Any) -> str:
    """One item of `_walk` in a line that no other item has."""
    if isinstance(item, ast.AST):
        return type(item).__name__
    if isinstance(item, tuple | list):
        return "[" if isinstance(item, list) else f".{item[0]}" if item else "]"
    # Neither depends on the version of Python: what can be printed does, and so does how many digits may be written.
    text = json.dumps(item) if isinstance(item, str) else hex(item) if isinstance(item, int) else repr(item)
    return f"={type(item).__name__} {text}"


def _imported(item: Any, module: str, *, package: bool) -> Iterator[str]:
    """Names that an import statement may import: its module, and the names in it, which may be modules."""
    if isinstance(item, ast.Import):
        yield from (alias.name for alias in item.names)
    elif isinstance(item, ast.ImportFrom):
        source = static.imported_module(item, module, package=package)
        yield source
        yield from (f"{source}.{alias.name}" for alias in item.names)
