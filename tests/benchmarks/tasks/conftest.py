from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache and no data folder; the folder of the cache's data, which is not there."""
    monkeypatch.setenv("CONTEXTLAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CONTEXTLAB_DATA", raising=False)
    return tmp_path / "cache" / "data"
