from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import contextlab
from contextlab import registry
from contextlab.errors import UserError

ROOT = Path(__file__).parents[1]


def install(folder: Path, package: str, entries: str, modules: dict[str, str]) -> None:
    """What pip leaves behind for a package with entry points."""
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
    install(tmp_path, "toy-plugin", entries, {"toy_plugin": "class Method: ...\nclass Task: ...\n"})
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
def test_a_name_taken_twice_is_not_guessed() -> None:
    with pytest.raises(UserError, match="toy-plugin and toy-rival"):
        registry.method_class("toy-twice")


def test_a_file_of_ones_own_needs_no_registration(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("class Mine: ...\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "own.py").write_text("class Mine:\n    other = True\n")
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
        ("bad.py:Mine", "bad.py cannot be imported .*boom"),
    ],
)
def test_mistakes_in_naming_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text("class Mine: ...\n")
    Path("bad.py").write_text("raise RuntimeError('boom')\n")
    with pytest.raises(UserError, match=message):
        registry.method_class(name)
    assert not any(module.startswith("bad_") for module in sys.modules)


def test_the_digest_of_a_file_follows_its_text(tmp_path: Path) -> None:
    digests = set()
    for text in ("class Mine: ...\n", "class Mine: ...\n# more\n"):
        (tmp_path / "own.py").write_text(text)
        digests |= {registry.source_digest(registry.method_class(f"{tmp_path}/own.py:Mine").__module__)}
    assert len(digests) == 2


def test_the_digest_of_a_package_covers_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    digests = set()
    for n, changed in enumerate(("", "x = 1\n")):
        package = tmp_path / f"toy_package_{n}"
        (package / "deep").mkdir(parents=True)
        (package / "__init__.py").write_text("")
        (package / "deep" / "part.py").write_text(changed)
        __import__(package.name)
        digests |= {registry.source_digest(f"{package.name}.deep.part")}
    assert len(digests) == 2


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
def test_settings_can_be_given_as_text(name):
    """As they come from the command line."""
    config = registry.method_class(name).Config
    defaults = config().as_dict()
    given = {key: str(value) for key, value in defaults.items() if value is not None}
    assert config.parse(given).as_dict() == defaults
