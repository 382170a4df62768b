from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

setuptools = pytest.importorskip("setuptools", minversion="77")

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "contextlab"


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The files of the package in a wheel."""
    from setuptools.config.pyprojecttoml import apply_configuration

    monkeypatch.chdir(ROOT)
    distribution = apply_configuration(setuptools.Distribution({"script_name": "setup.py"}), ROOT / "pyproject.toml")
    # Otherwise a folder of metadata would be written into the source tree.
    distribution.include_package_data = False
    command = distribution.get_command_obj("build_py")
    command.build_lib = str(tmp_path)
    command.ensure_finalized()
    outputs = command.get_outputs(include_bytecode=False)
    return {str(Path(file).relative_to(tmp_path / "contextlab")) for file in outputs}


def test_a_wheel_holds_every_file_of_the_package(built: set[str]) -> None:
    there = {path.relative_to(PACKAGE) for path in PACKAGE.rglob("*") if path.is_file()}
    assert {str(path) for path in there if "__pycache__" not in path.parts} == built


def test_every_pattern_of_package_data_finds_something() -> None:
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    for pattern in tool["package-data"]["contextlab"]:
        assert list(PACKAGE.glob(pattern)), pattern


@pytest.fixture
def without_files(tmp_path: Path) -> Path:
    """A folder of packages in which the metadata of the package is left, and its files are gone."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [
        line
        for group, entries in project["entry-points"].items()
        for line in (f"[{group}]", *(f"{name} = {target}" for name, target in entries.items()))
    ]
    record = tmp_path / "site" / f"contextlab-{project['version']}.dist-info"
    record.mkdir(parents=True)
    (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: contextlab\nVersion: {project['version']}\n")
    (record / "entry_points.txt").write_text("\n".join(lines))
    # Hides the package of the tests.
    (tmp_path / "site" / "contextlab.py").write_text("raise ModuleNotFoundError('the files are gone')")
    return tmp_path / "site"


def test_torch_is_imported_where_the_files_of_the_package_are_gone(without_files: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(without_files), "TORCH_DEVICE_BACKEND_AUTOLOAD": "1"}
    code = "import torch, importlib.metadata as m; print(m.distribution('contextlab').locate_file(''))"
    command = [sys.executable, "-c", code]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
    assert (answer.stdout.strip(), answer.stderr) == (str(without_files), "")


def test_torch_is_imported_beside_a_folder_of_the_package_s_name(tmp_path: Path) -> None:
    (tmp_path / "contextlab").mkdir()
    (tmp_path / "contextlab" / "__init__.py").write_text("raise ImportError('not the package')")
    answer = subprocess.run(
        [sys.executable, "-c", "import torch"], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert (answer.returncode, answer.stderr) == (0, "")


def test_no_program_but_ours_and_pytest_loads_the_package() -> None:
    """An entry point in another group makes other programs depend on our files."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    assert set(groups) == {"contextlab.methods", "contextlab.tasks", "pytest11"}
