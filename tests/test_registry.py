from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import contextlab
from contextlab import registry
from contextlab.cli.main import main
from contextlab.errors import UserError

ROOT = Path(__file__).parents[1]
METHOD = "from contextlab.methods.full import Full\n"
TASK = "from contextlab.benchmarks.tasks.needle import Needle\nclass Task(Needle): ...\n"
# Errors of a plugin, with the text of their messages.
METHODS_GONE_WRONG = {
    "exits": ("import sys\nsys.exit(3)\n", "cannot be imported (SystemExit: 3)"),
    "ends": ("raise GeneratorExit\n", "cannot be imported (GeneratorExit)"),
    "own": ("class E(BaseException): ...\nraise E('two\\nlines')\n", "cannot be imported (E: two)"),
    "prints": ("print('noise')\n1 / 0\n", "(ZeroDivisionError: division by zero)"),
    "syntax": ("class\n", "cannot be imported (SyntaxError"),
    "deep": ("def f(): f()\nf()\n", "RecursionError"),
    "lacks": ("", "cannot be imported (AttributeError"),
    "number": ("X = 3\n", "The int that 'number' of package pack-methods-number stands for is no method"),
    "plain": ("class X: ...\n", "The class X that 'plain' of package pack-methods-plain stands for is no method"),
    "abstract": (
        "from contextlab.method import ContextMethod\nclass X(ContextMethod): ...\n",
        "The method 'abstract' of package pack-methods-abstract lacks capabilities, read, start",
    ),
    "built": (f"{METHOD}class X(Full):\n    def __init__(self): ...\n", "not built from a backbone and a config"),
    "config": (f"{METHOD}class X(Full):\n    Config = dict\n", "of package pack-methods-config is no MethodConfig"),
    "instance": (f"{METHOD}X = object.__new__(Full)\n", "is no method"),
}
TASK_CLASS = f"{TASK}class X(Task):\n    "
TASKS_GONE_WRONG = {
    "method": (f"{METHOD}X = Full\n", "that 'method' of package pack-tasks-method stands for is no task"),
    "made": (f"{TASK_CLASS}def __init__(self, more): ...\n", "of package pack-tasks-made cannot be made (TypeError"),
    "leaves": (f"{TASK_CLASS}def __init__(self): raise SystemExit\n", "cannot be made (SystemExit)"),
    "splits": (f"{TASK_CLASS}splits = {{}}\n", "of package pack-tasks-splits says no splits"),
    "none": (f"{TASK_CLASS}splits = None\n", "of package pack-tasks-none says no splits"),
    "default": (f"{TASK_CLASS}default_split = 'x'\n", "or its default is none of them"),
    "property": (f"{TASK_CLASS}splits = property(lambda self: 1 / 0)\n", "cannot be made (ZeroDivisionError"),
}


def install(folder: Path, package: str, entries: str, modules: dict[str, str]) -> None:
    """The metadata that pip writes for a package with entry points."""
    info = folder / f"{package.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entries)
    for name, source in modules.items():
        (folder / f"{name}.py").write_text(source)


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    entries = """
[contextlab.methods]
toy-method = toy_plugin:Method
toy-broken = toy_absent:Method
toy-twice = toy_plugin:Method
[contextlab.tasks]
toy-task = toy_plugin:Task
"""
    install(tmp_path, "toy-plugin", entries, {"toy_plugin": f"{METHOD}class Method(Full): ...\n{TASK}"})
    install(tmp_path, "toy-rival", "[contextlab.methods]\ntoy-twice = toy_rival:Method\n", {})
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "toy_plugin", raising=False)
    return tmp_path


@pytest.mark.usefixtures("plugins")
def test_entry_points_are_found_with_their_package() -> None:
    assert registry.methods()["toy-method"] == "toy-plugin"
    assert registry.tasks()["toy-task"] == "toy-plugin"
    assert registry.method_class("toy-method").__name__ == "Method"
    assert type(registry.task("toy-task")).__name__ == "Task"


@pytest.mark.usefixtures("plugins")
def test_the_nearest_name_is_suggested() -> None:
    with pytest.raises(UserError, match="no method 'toy-metod': did you mean 'toy-method'"):
        registry.method_class("toy-metod")
    with pytest.raises(UserError, match="no task 'toy-tsk': did you mean 'toy-task'"):
        registry.task("toy-tsk")


@pytest.mark.usefixtures("plugins")
def test_a_package_that_fails_to_import_is_named() -> None:
    with pytest.raises(UserError, match=r"of package toy-plugin cannot be imported .*toy_absent"):
        registry.method_class("toy-broken")


@pytest.mark.usefixtures("plugins")
def test_a_name_of_two_plugins_is_an_error() -> None:
    with pytest.raises(UserError, match="toy-plugin and toy-rival"):
        registry.method_class("toy-twice")


@pytest.fixture
def gone_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One package for every error."""
    for group, cases in (("methods", METHODS_GONE_WRONG), ("tasks", TASKS_GONE_WRONG)):
        for name, (source, _) in cases.items():
            module = f"toy_{group}_{name}"
            monkeypatch.delitem(sys.modules, module, raising=False)
            install(tmp_path, f"pack-{group}-{name}", f"[contextlab.{group}]\n{name} = {module}:X\n", {module: source})
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("gone_wrong")
@pytest.mark.parametrize("name", METHODS_GONE_WRONG)
def test_a_method_that_is_none_is_one_sentence(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError) as error:
        registry.method_class(name)
    message = str(error.value)
    assert METHODS_GONE_WRONG[name][1] in message
    assert "\n" not in message
    assert "cannot be imported" not in message or f"pack-methods-{name}" in message
    assert capsys.readouterr().out == ""


@pytest.mark.usefixtures("gone_wrong")
@pytest.mark.parametrize("name", TASKS_GONE_WRONG)
def test_a_task_that_is_none_is_one_sentence(name: str) -> None:
    with pytest.raises(UserError) as error:
        registry.task(name)
    assert TASKS_GONE_WRONG[name][1] in str(error.value)


@pytest.mark.usefixtures("gone_wrong")
def test_faulty_plugins_do_not_hide_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    for kind, cases in (("methods", METHODS_GONE_WRONG), ("tasks", TASKS_GONE_WRONG)):
        for option in ([], ["--verbose"]):
            assert main(["ls", kind, "--json", *option]) == 0
            listed = {line["name"]: line for line in map(json.loads, capsys.readouterr().out.splitlines())}
            assert cases.keys() | {"full" if kind == "methods" else "needle"} <= listed.keys()
            assert all(line["from"] for line in listed.values())
            if option or kind == "tasks":
                assert all(cases[name][1] in listed[name]["about"] for name in cases)


def test_listing_methods_runs_nothing_of_them(gone_wrong: Path) -> None:
    """Nor of the packages that contain them."""
    code = f"""
import sys
sys.path.insert(0, {str(gone_wrong)!r})
from contextlab.cli.main import main
before = set(sys.modules)
code = main(["ls", "methods"])
print(*(set(sys.modules) - before), file=sys.stderr)
sys.exit(code)
"""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(answer.stderr.split())
    assert not [name for name in loaded if name.startswith(("torch", "numpy", "toy_", "contextlab.method"))]
    assert "Attends to the current window of N tokens only" in answer.stdout


def test_a_file_of_ones_own_needs_no_registration(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(f"{METHOD}class Mine(Full): ...\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "own.py").write_text(f"{METHOD}class Mine(Full):\n    other = True\n")
    first = registry.method_class(f"{tmp_path}/own.py:Mine")
    second = registry.method_class(f"{tmp_path}/folder/own.py:Mine")
    assert not hasattr(first, "other")
    assert hasattr(second, "other")
    assert first.__module__ != second.__module__


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own.py", "write path.py:Class"),
        ("absent.py:Mine", "no file absent.py"),
        ("own.py:Mien", "did you mean 'Mine'"),
        ("own.py:VALUE", "The int that 'own.py:VALUE' stands for is no method"),
        ("own.py:", "no method in own.py ''"),
        ("own.py:a.b", r"no method in own.py 'a\.b'"),
        ("bad.py:Mine", "bad.py cannot be imported .*boom"),
        ("leaves.py:Mine", r"leaves.py cannot be imported \(SystemExit: 1\)"),
    ],
)
def test_mistakes_in_naming_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(f"{METHOD}class Mine(Full): ...\nVALUE = 3\n")
    Path("bad.py").write_text("raise RuntimeError('boom')\n")
    Path("leaves.py").write_text("raise SystemExit(1)\n")
    with pytest.raises(UserError, match=message):
        registry.method_class(name)
    assert not any(module.startswith("bad_") for module in sys.modules)


def test_looking_up_names_imports_nothing_heavy() -> None:
    code = "import sys, contextlab, contextlab.registry as r; r.methods(); r.tasks(); print(*sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "contextlab.registry" in answer.split()
    assert not {"torch", "pandas", "transformers", "numpy"} & set(answer.split())


def test_everything_that_is_built_in_is_registered_under_a_name_that_loads() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert contextlab.__version__ == project["version"]
    for group in (registry.METHODS, registry.TASKS):
        for value in project["entry-points"][group].values():
            module, _, name = value.partition(":")
            assert (ROOT / "src" / Path(*module.split("."))).with_suffix(".py").exists() or (
                ROOT / "src" / Path(*module.split(".")) / "__init__.py"
            ).exists(), f"{module}:{name}"


@pytest.mark.parametrize("name", registry.methods())
def test_settings_are_parsed_from_text(name: str) -> None:
    """In the form of the command line."""
    config = registry.method_class(name).Config
    defaults = config().as_dict()
    texts = {key: str(value) for key, value in defaults.items() if value is not None}
    assert config.parse(texts).as_dict() == defaults
