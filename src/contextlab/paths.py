"""Folders outside the project."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def cache_dir() -> Path:
    """`CONTEXTLAB_CACHE`, else the platform's cache folder; not created here."""
    return Path(os.environ.get("CONTEXTLAB_CACHE") or platformdirs.user_cache_dir("contextlab")).expanduser()
