from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import pytest

from contextlab import registry, static


@pytest.mark.parametrize("group", [registry.METHODS, registry.TASKS])
def test_what_is_read_from_the_source_is_what_the_class_says(group: str) -> None:
    for target in registry.sources(group).values():
        module, _, name = target.partition(":")
        docstring = inspect.getdoc(getattr(importlib.import_module(module), name)) or ""
        assert static.first_line(target) == docstring.partition("\n")[0] != ""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    files = {
        "toy_static/__init__.py": "from .inner import Renamed as Top\nfrom toy_static import lost\nraise SystemExit\n",
        "toy_static/inner/__init__.py": "from ..other import Real as Renamed\nfrom .round import Circle\n",
        "toy_static/inner/round.py": "from . import Circle\n",
        "toy_static/other.py": "class Real:\n    '''The   first line.\n\n    More.'''\nclass Bare: ...\nName = Real\n",
        "toy_static/broken.py": "class\n",
        "toy_static/latin.py": "# \xe9\nclass Odd:\n    '''\xe9'''\n",
    }
    for name, source in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(source.encode("latin-1"))
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("target", "line"),
    [
        ("toy_static:Top", "The   first line."),
        ("toy_static.inner:Renamed", "The   first line."),
        ("toy_static.other:Real", "The   first line."),
        ("toy_static.other:Bare", ""),
        ("toy_static.other:Name", ""),
        ("toy_static:lost", ""),
        ("toy_static:absent", ""),
        ("toy_static.inner:Circle", ""),
        ("toy_static.broken:X", ""),
        ("toy_static.latin:Odd", ""),
        ("toy_static.absent:X", ""),
        ("sys:X", ""),
        ("", ""),
        ("no module at all", ""),
        ("a..b:X", ""),
    ],
)
def test_names_are_followed_to_their_class_without_running_anything(target: str, line: str) -> None:
    assert static.first_line(target) == line
