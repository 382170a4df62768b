"""Scripts of `benches/`, which are no package, as modules."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

BENCHES = Path(__file__).parents[1] / "benches"


def bench_module(name: str) -> ModuleType:
    """A script by its name, loaded afresh."""
    spec = importlib.util.spec_from_file_location(f"bench_{name}", BENCHES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
