from __future__ import annotations

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
