"""Folders outside the project."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def cache_dir() -> Path:
    """The folder `CONTEXTLAB_CACHE`, else the platform's cache folder; it is not created."""
    return Path(os.environ.get("CONTEXTLAB_CACHE") or platformdirs.user_cache_dir("contextlab")).expanduser()
