"""Folders outside the project."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def cache_dir() -> Path:
    """The folder `CONTEXTLAB_CACHE`, else the platform's cache folder; it is not created."""
    return Path(os.environ.get("CONTEXTLAB_CACHE") or platformdirs.user_cache_dir("contextlab")).expanduser()


def has_backbone(name: str) -> bool:
    """Whether the cache holds a backbone that was downloaded and converted under this name."""
    return any((cache_dir() / "backbones").glob(f"{name}-*"))
