from __future__ import annotations

import ast
import importlib
import os
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest
from forks import forks

from contextlab import registry
from contextlab.harness import code

PACKAGE = Path(code.__file__).parents[1]
SOURCES = sorted(PACKAGE.rglob("*.py"))
BASE = "import a\ndef f(x, y=None):\n    return x + 1 if y is None else [x, *y]\n"
EVERYTHING = '''
"""Documentation."""
from __future__ import annotations
import a.b as c
from .d import e
type_of: dict[str, int] = {"é\\ud800": 1, **{}}
@e(1.5, k=-2j)
class A(c.B[int], metaclass=M):
    x: int = 10**400
    async def f(self, a, /, b=b"\\0", *args, c: int, d=None, **more) -> None:
        async with a as b, c:
            yield f"{a!r:>{b}}{{}}" "x" f"{c=}"
        return
def g(x):
    global y
    match x:
        case {"k": [1, *rest], **others} | A(z=None) if (n := 3) > 2:
            del rest[1:2, ...]
        case _:
            raise E from None
    try:
        assert not x, u"why"
    except* (E, F) as error:
        lambda: (yield)
    else:
        x @= [i async for i in x if True]
    finally:
        nonlocal_ = 1 < x <= 3 and x
    while x: break
    else: continue_ = 1
'''


@pytest.mark.parametrize(
    "source",
    [
        "# why\n" + BASE,
        '"""What."""\n' + BASE.replace("    return", '    """What."""\n    # why\n    return'),
        BASE.replace("return x + 1", "return (\n  x  +  0x1\n)"),
        BASE + "\n'what it is'\n...\npass\n",
        BASE + "if TYPE_CHECKING:\n    import b\nelif typing.TYPE_CHECKING:\n    import c\n",
    ],
)
def test_comments_documentation_layout_and_types_alone_do_not_count(source: str) -> None:
    assert code.digest(source) == code.digest(BASE)


def test_whatever_computes_counts() -> None:
    changes = [
        ("+", "-"),
        ("1", "2"),
        ("1", "1.0"),
        ("1", "True"),
        ("1", "None"),
        ("1", "'1'"),
        ("None", "0"),
        ("=None", ""),
        ("[x, *y]", "[x, y]"),
        ("[x, *y]", "(x, *y)"),
        ("[x, *y]", "[[x], *y]"),
        ("import a", "import b"),
        ("import a", "import a as b"),
        ("import a", "if TYPE_CHECKING:\n    import a\nelse:\n    import c"),
        ("def f", "async def f"),
        ("def f", "@a\ndef f"),
        ("import a\n", ""),
        ("return x", "x"),
    ]
    sources = [BASE, *(BASE.replace(*change) for change in changes)]
    assert len({code.digest(source) for source in sources}) == len(sources)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_that_is_written_anew_from_its_syntax_has_the_same_digest(path: Path) -> None:
    source = path.read_text()
    assert code.digest(ast.unparse(ast.parse(source))) == code.digest(source)


def test_the_digest_is_the_same_on_every_version_of_python() -> None:
    assert code.digest(EVERYTHING) == "78e49b0c94b9"


def test_what_is_no_source_counts_byte_by_byte() -> None:
    assert len({code.digest(source) for source in (b"\x7fELF\0a", b"\x7fELF\0b", "def", "if")}) == 4


def package(folder: Path, name: str, files: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A package of these files, imported."""
    for path, text in files.items():
        (folder / name / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / name / path).write_text(text)
    monkeypatch.syspath_prepend(folder)
    return importlib.import_module(name)


FILES = {
    "__init__.py": "from .plugin import Plugin",
    "plugin.py": """
from typing import TYPE_CHECKING
from toy_code.deep import inner
from contextlab.attention import rotary
import json, numpy
import toy_code.far.off
if TYPE_CHECKING:
    from toy_code.deep import types
class Plugin:
    def late(self):
        from .deep.lazy import VALUE
""",
    "deep/__init__.py": "",
    "far/__init__.py": "RUN_FIRST = 1",
    "far/off.py": "",
    "deep/inner.py": "from .. import beside",
    "deep/lazy.py": "VALUE = 1",
    "deep/types.py": "",
    "beside.py": "from contextlab.cards import Card",
    "unused.py": "",
}


def test_what_a_package_imports_anywhere_is_followed_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy_package = package(tmp_path, "toy_code", FILES, monkeypatch)
    names = set(code.modules([toy_package.Plugin]))
    own = {name for name in names if name.startswith("toy_code")}
    # The package of a module runs before it, also where only the module is named.
    parts = ("plugin", "deep", "deep.inner", "deep.lazy", "far", "far.off", "beside")
    assert own == {"toy_code", *(f"toy_code.{part}" for part in parts)}
    assert {"contextlab.attention.rotary", "contextlab.cards"} <= names - own
    assert all(name.startswith("contextlab.") for name in names - own)
    assert "toy_code.deep.lazy" not in sys.modules


def test_editing_a_file_does_not_relabel_what_was_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy_package = package(tmp_path, "toy_edited", {"__init__.py": "class Plugin: ..."}, monkeypatch)
    before = code.modules([toy_package.Plugin])
    (tmp_path / "toy_edited" / "__init__.py").write_text("class Plugin: x = 1")
    assert code.modules([toy_package.Plugin]) == before
    monkeypatch.delitem(sys.modules, "toy_edited")
    importlib.invalidate_caches()
    assert code.modules([importlib.import_module("toy_edited").Plugin]) != before


OWN = "from contextlab.methods.full import Full\nimport installed_by_hand, own_part\nclass Mine(Full): ...\n"


def test_a_file_is_followed_in_its_folder_but_not_into_an_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = []
    environment = tmp_path / ".venv/lib/site-packages"
    environment.mkdir(parents=True)
    (environment / "installed_by_hand.py").write_text("")
    (tmp_path / "own_part.py").write_text("def f():\n    import own_late")
    (tmp_path / "own_late.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(environment)
    for text in (OWN, f"{OWN}# more\n", f"{OWN}x = 1\n"):
        (tmp_path / "own.py").write_text(text)
        digests.append(code.modules([registry.method_class(f"{tmp_path}/own.py:Mine")]))
    assert {name for name in digests[0] if "contextlab" not in name} == {"own.py", "own_part.py", "own_late.py"}
    assert "contextlab.methods.full" in digests[0]
    assert digests[0] == digests[1] != digests[2]


def test_methods_and_tasks_reach_nothing_that_reports_trains_or_stores() -> None:
    kinds = [*map(registry.method_class, registry.methods()), *map(registry.task_class, registry.tasks())]
    rooms = {name.split(".")[1] for name in code.modules(kinds)}
    assert {"attention", "backbone", "benchmarks", "kernels", "methods"} <= rooms
    above = {"accounting", "cli", "harness", "integrations", "registry", "reports", "testing", "training", "version"}
    assert not rooms & above


def test_a_method_does_not_depend_on_other_methods_or_tasks() -> None:
    names = set(code.modules([registry.method_class("sinks"), registry.task_class("needle")]))
    assert {"contextlab.methods.sinks", "contextlab.kernels.sink_attention.blocked"} <= names
    assert {"contextlab.backbone.loading", "contextlab.benchmarks.protocols.answers"} <= names
    assert not {name for name in names if "longmem" in name or "pg22" in name}


RUN_ID = """
import contextlab
results = contextlab.bench("window", "sst2/n2", limit=1, backbone="tiny-llama", device="cpu")
print(contextlab.__file__)
print(results.runs[0].run_id)
"""


def test_a_comment_keeps_a_run_and_a_line_of_attention_makes_another(tmp_path: Path) -> None:
    copy = tmp_path / "contextlab"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("weights", "__pycache__"))

    def edit(module: str, added: str) -> None:
        with open(copy / module, "a") as file:
            file.write(added)

    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    with forks(tmp_path, environment) as run_id:
        file, first = run_id(RUN_ID)
        assert Path(file).parent == copy
        edit("reports/tables.py", "\nADDED = 1\n")
        edit("cli/bench.py", "\nADDED = 1\n")
        edit("version.py", '\n__version__ = "9"\n')
        edit("methods/longmem/method.py", "\nADDED = 1\n")
        edit("attention/cache.py", '\n# A comment.\n"""And a text."""\n')
        assert run_id(RUN_ID) == [file, first]
        edit("attention/cache.py", "\nADDED = 1\n")
        assert run_id(RUN_ID)[1] != first
