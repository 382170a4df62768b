"""Every test asserts something: by itself, or through a helper of the tests or a law."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
LAWS = "contextlab.testing"
"""What is imported from there is a law, which asserts."""
OF_PYTEST = ("raises", "warns", "fail")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.AST) -> dict[str, Function]:
    return {node.name: node for node in ast.walk(tree) if isinstance(node, Function)}


def imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Names that a module imports with `from`, and the modules that they come from."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from ((alias.asname or alias.name, node.module) for alias in node.names)


def called(node: ast.AST) -> Iterator[tuple[str, str]]:
    """The first and the last name of everything that is called: of `laws.LAWS[law](method)`, `laws` and `LAWS`."""
    for call in ast.walk(node):
        if isinstance(call, ast.Call):
            target, last = call.func, ""
            while isinstance(target, ast.Attribute | ast.Subscript):
                last = last or (target.attr if isinstance(target, ast.Attribute) else "")
                target = target.value
            if isinstance(target, ast.Name):
                yield target.id, last or target.id


def asserting(tree: ast.AST, helpers: set[str]) -> set[str]:
    """Names of a module's functions that assert, given the asserting names that it imports."""
    known = set(helpers)
    while True:
        new = {name for name, node in functions(tree).items() if name not in known and _asserts(node, known)}
        if not new:
            return known
        known |= new


def _asserts(node: Function, known: set[str]) -> bool:
    if any(isinstance(part, ast.Assert) for part in ast.walk(node)):
        return True
    return any(
        first in known or last.startswith("assert_") or (first == "pytest" and last in OF_PYTEST)
        for first, last in called(node)
    )


def silent(modules: dict[str, ast.AST]) -> list[str]:
    """The tests of modules that assert nothing.

    Args:
        modules: syntax of every module of tests, by its name.
    """
    of_module = {name: asserting(tree, set()) for name, tree in modules.items()}
    without = []
    for module, tree in modules.items():
        helpers = {
            name
            for name, source in imports(tree)
            if source.startswith(LAWS) or (source == "contextlab" and name == "testing")
            or name in of_module.get(source, ())
        }  # fmt: skip
        known = asserting(tree, helpers)
        without += [f"{module}: {name}" for name in functions(tree) if name.startswith("test_") and name not in known]
    return without


def test_every_test_asserts_something() -> None:
    modules = {path.stem: ast.parse(path.read_text("utf-8")) for path in sorted(TESTS.rglob("*.py"))}
    assert silent(modules) == []


@pytest.mark.parametrize(
    ("body", "asserts"),
    [
        ("assert x", True),
        ("with pytest.raises(E): f()", True),
        ("torch.testing.assert_close(a, b)", True),
        ("laws.LAWS[law](method)", True),
        ("helper()", True),
        ("through()", True),
        ("alike(lambda: f())", True),
        ("f(assertion)", False),
        ("try:\n        f()\n    except E:\n        pass", False),
        ("subprocess.run(command, check=True)", False),
        ("other.helper()", False),
    ],
)
def test_a_test_without_an_assertion_is_seen(body: str, asserts: bool) -> None:
    module = f"""
from contextlab.testing import laws
from tools import alike
def helper():
    assert y
def through():
    helper()
def test_it():
    {body}
"""
    modules = {"test_x": ast.parse(module), "tools": ast.parse("def alike(f):\n    assert f()\n")}
    assert silent(modules) == ([] if asserts else ["test_x: test_it"])
