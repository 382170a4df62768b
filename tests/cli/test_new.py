"""What `contextlab new` writes passes its tests at once, and can be installed."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

from contextlab import backbone, registry
from contextlab.cli.main import main

# One law of one family is enough here: the laws have tests of their own.
CHOSEN = {"method": ["-k", "tiny-llama and (causal or split)"], "task": []}


@pytest.mark.parametrize("kind", ["method", "task"])
def test_the_package_passes_its_tests_at_once(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", kind, "my-own"]) == 0
    assert "pytest my-own" in capsys.readouterr().out
    assert sorted(path.name for path in Path("my-own").iterdir()) == ["my_own.py", "pyproject.toml", "test_my_own.py"]
    project = tomllib.loads(Path("my-own/pyproject.toml").read_text())["project"]
    assert project["entry-points"] == {f"contextlab.{kind}s": {"my-own": "my_own:MyOwn"}}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "my-own", *CHOSEN[kind]]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout
    assert "passed" in run.stdout


def test_a_new_method_fits_small_models_as_it_is(tmp_path: Path) -> None:
    assert main(["new", "method", "my-own", "--out", str(tmp_path / "package")]) == 0
    method = registry.method_class(f"{tmp_path / 'package' / 'my_own.py'}:MyOwn")(backbone.load("tiny-llama"))
    assert method.read(method.start(), torch.zeros(1, 200, dtype=torch.int64))[0].length_B.tolist() == [200]


def test_a_package_can_be_installed(tmp_path: Path) -> None:
    assert main(["new", "task", "my-own", "--out", str(tmp_path / "package")]) == 0
    install = ["install", "-q", "--no-build-isolation", "--no-deps", "--no-index", "--target", str(tmp_path / "site")]
    subprocess.run([sys.executable, "-m", "pip", *install, str(tmp_path / "package")], check=True)
    code = "from contextlab import registry; print(registry.tasks()['my-own'], registry.task('my-own').name)"
    environment = {"PYTHONPATH": ":".join([str(tmp_path / "site"), *sys.path])}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert run.stdout.split() == ["contextlab-my-own", "my-own"], run.stderr


def test_an_installed_module_is_not_hidden(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "method", "torch", "--out", str(tmp_path / "package")]) == 2
    assert "A module 'torch' is installed already" in capsys.readouterr().err
    assert not (tmp_path / "package").exists()


@pytest.mark.parametrize("name", ["My-Own", "1st", "my own", "../up", "json", "class", "my--own", ""])
def test_a_name_that_cannot_be_one_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", "method", name]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my-own").mkdir()
    assert main(["new", "task", "my-own"]) == 2
    assert "my-own exists already: name another folder" in capsys.readouterr().err
    existing = next(iter(registry.tasks()))
    assert main(["new", "task", existing]) == 2
    assert f"There is a task '{existing}' already" in capsys.readouterr().err
